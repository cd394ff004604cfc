# ddprun_embedded_page(SOURCE PAGE MACRO): SOURCE holds PAGE, whose path it finds in MACRO. The page's
# checksum is on the command line, so that no cache of the compiler's serves an older page.
function(ddprun_embedded_page source page macro)
  set(path ${CMAKE_CURRENT_SOURCE_DIR}/${page})
  file(SHA256 ${path} checksum)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS ${path}
    COMPILE_DEFINITIONS "${macro}=\"${path}\";DDPRUN_PAGE_CHECKSUM=\"${checksum}\"")
endfunction()
