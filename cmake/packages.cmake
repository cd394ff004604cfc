# What deploy/package.sh makes of a build with Gloo's source: a Debian package and an archive that may
# be unpacked anywhere. Both hold the programs and the C library; the archive has no systemd unit.

# The licences of what is linked in; Boost's asks for none with programs.
function(ddprun_install_licences destination component)
  foreach(package libssl-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libhwloc-dev
                  libstdc++-12-dev)
    set(licence /usr/share/doc/${package}/copyright)
    if(EXISTS ${licence})
      install(FILES ${licence} DESTINATION ${destination} RENAME ${package} COMPONENT ${component})
    endif()
  endforeach()
  install(FILES ${DDPRUN_GLOO_SOURCE}/LICENSE
          DESTINATION ${destination} RENAME gloo COMPONENT ${component})
endfunction()

# ddprun_compress(result file): a copy of a file as Debian wants manuals and changelogs.
find_program(DDPRUN_GZIP gzip)
function(ddprun_compress result file)
  get_filename_component(name ${file} NAME)
  set(copy ${PROJECT_BINARY_DIR}/compressed/${name}.gz)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/compressed)
  execute_process(COMMAND ${DDPRUN_GZIP} -9 -n -c ${file} OUTPUT_FILE ${copy} COMMAND_ERROR_IS_FATAL ANY)
  set(${result} ${copy} PARENT_SCOPE)
endfunction()

if(DDPRUN_GLOO_SOURCE AND NOT SKBUILD)
  ddprun_install_licences(${CMAKE_INSTALL_DOCDIR}/licences programs)
  # What only a Debian package has: the component debian.
  set(debian ${PROJECT_SOURCE_DIR}/deploy/package/debian)
  configure_file(${debian}/changelog.in changelog @ONLY)
  ddprun_compress(changelog ${CMAKE_CURRENT_BINARY_DIR}/changelog)
  install(FILES ${changelog} ${debian}/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT debian)
  install(FILES ${debian}/lintian-overrides DESTINATION share/lintian/overrides RENAME ddprun COMPONENT debian)
  set(CPACK_PACKAGE_NAME ddprun)
  set(CPACK_PACKAGE_VENDOR ddprun)
  set(CPACK_PACKAGE_CONTACT "ddprun developers <developers@ddprun.invalid>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
  file(READ ${debian}/description CPACK_PACKAGE_DESCRIPTION)
  set(CPACK_GENERATOR DEB TGZ)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_COMPONENTS_ALL programs c_library service debian)
  set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
  set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/package_kinds.cmake)
  set(CPACK_DDPRUN_PROCESSOR ${CMAKE_SYSTEM_PROCESSOR})  # For that file.
  set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
      OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  if(DDPRUN_GLIBC)
    # dpkg-shlibdeps would name the version in which this machine's libc6 took in libpthread.
    set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= ${DDPRUN_GLIBC})")
  else()
    set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  endif()
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
  set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${debian}/triggers;${debian}/postinst;${debian}/postrm")
  set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
  set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
  # Scripts of our own, for CPack would write some that call ldconfig, which is the trigger's.
  include(CPack)
endif()
