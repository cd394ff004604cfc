# ddprun_embedded_file(SOURCE FILE MACRO): SOURCE holds FILE, whose path it finds in MACRO (common/embedded_file.h). The
# file's checksum is on the command line, so that no cache of the compiler's serves an older one.
function(ddprun_embedded_file source file macro)
  cmake_path(ABSOLUTE_PATH file OUTPUT_VARIABLE path)
  file(SHA256 ${path} checksum)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  set_property(SOURCE ${source} APPEND PROPERTY OBJECT_DEPENDS ${path})
  set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS
               "${macro}=\"${path}\"" "${macro}_CHECKSUM=\"${checksum}\"")
endfunction()
