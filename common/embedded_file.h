#pragma once
// DDPRUN_EMBEDDED_FILE(name, "PATH") at the top of a source: the program contains that file's
// bytes, from `name` up to `name`_end. cmake/embedded_file.cmake gives the path.

#define DDPRUN_EMBEDDED_FILE(name, path)                                          \
  asm(".pushsection .rodata, \"a\"\n"                                             \
      ".hidden " #name ", " #name                                                 \
      "_end\n"                                                                    \
      ".global " #name ", " #name "_end\n" #name ": .incbin \"" path "\"\n" #name \
      "_end:\n"                                                                   \
      ".popsection\n");                                                           \
  extern "C" const char name[];                                                   \
  extern "C" const char name##_end[]
