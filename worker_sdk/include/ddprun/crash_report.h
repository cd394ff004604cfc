#pragma once
// What a crashing worker leaves behind.

namespace ddprun {

/// From now on a crash (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, an exception that nobody catches)
/// writes what it was and the call stack to standard error and, in the format of PyTorch's @record,
/// to the file that TORCHELASTIC_ERROR_FILE names; ddprun quotes it in its verdict. Then the
/// program ends by the same signal as without. Names of functions appear if the program is linked
/// with -rdynamic.
///
/// Signals that already have a handler, and those that are ignored, are left alone. Calling it
/// again changes nothing. ProcessGroup::init() calls it in workers of ddprun and torchrun, unless
/// DDPRUN_CRASH_REPORT is 0; call it first thing in main() to cover what comes before.
void install_crash_report() noexcept;

}  // namespace ddprun
