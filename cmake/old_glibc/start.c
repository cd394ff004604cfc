// How a program starts where the C library may be older than this machine's: linked by
// cmake/old_glibc.cmake, for crt1.o of glibc 2.34 and later.
//
// Since 2.34 the C library runs a program's constructors, and crt1.o does not pass it a function that
// does. An older C library runs none then. Every C library calls a function that is passed.

#include <stddef.h>

#define HIDDEN __attribute__((visibility("hidden")))

typedef int Main(int, char**, char**);
typedef void Constructor(int, char**, char**);
typedef void Function(void);

extern Constructor* const __init_array_start[] HIDDEN;
extern Constructor* const __init_array_end[] HIDDEN;
extern Function _init;

#ifdef __x86_64__
__asm__(".symver library_start_main, __libc_start_main@GLIBC_2.2.5");
#else
__asm__(".symver library_start_main, __libc_start_main@GLIBC_2.17");
#endif
int library_start_main(Main*, int, char**, Constructor*, Function*, Function*, void*);

static void construct(int count, char** arguments, char** environment) {
  _init();
  for (Constructor* const* each = __init_array_start; each != __init_array_end; ++each) {
    (*each)(count, arguments, environment);
  }
}

HIDDEN int __libc_start_main(Main* program, int count, char** arguments, Constructor* constructors,
                             Function* destructors, Function* end_of_loader, void* stack_end) {
  return library_start_main(program, count, arguments, constructors ? constructors : construct,
                            destructors, end_of_loader, stack_end);
}
