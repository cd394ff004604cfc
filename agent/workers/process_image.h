#pragma once
// The functions of libddprun-image.so, see process_image.cc. For Python, which calls them by their
// names.

#if defined(__GNUC__)
#define DDPRUN_IMAGE_API extern "C" __attribute__((visibility("default")))
#endif

// The exit code of a process that could not become what was saved, once its own memory was gone.
constexpr int kExitNotReturned = 126;

// Writes the calling process into `file`, from the byte `at` on, a multiple of 4096. Returns 0; -1
// and the reason in `why` if it cannot be saved; and once more, the `number` given there, in a
// process that has become this one.
DDPRUN_IMAGE_API int ddprun_image_save(int file, long at, char* why, unsigned long why_bytes);

// The calling process becomes the saved one, whose save() returns `number`, above 0. Returns -1
// with the reason if nothing was changed; ends by kExitNotReturned if it fails later.
DDPRUN_IMAGE_API int ddprun_image_become(int file, long at, int number, char* why,
                                         unsigned long why_bytes);
