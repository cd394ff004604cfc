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

if(DDPRUN_GLOO_SOURCE AND NOT SKBUILD)
  ddprun_install_licences(${CMAKE_INSTALL_DOCDIR}/licences programs)
  set(CPACK_PACKAGE_NAME ddprun)
  set(CPACK_PACKAGE_VENDOR ddprun)
  set(CPACK_PACKAGE_CONTACT "ddprun developers <developers@ddprun.invalid>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
  set(CPACK_GENERATOR DEB TGZ)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_COMPONENTS_ALL programs c_library service)
  set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
  set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/package_kinds.cmake)
  set(CPACK_DDPRUN_PROCESSOR ${CMAKE_SYSTEM_PROCESSOR})  # For that file.
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
  set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
  include(CPack)
endif()
