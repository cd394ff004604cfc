#pragma once
// The report that a crashing worker writes.

namespace ddprun {

/// After this call a crash (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, an uncaught exception) writes
/// its cause and the call stack to standard error and, in the format of PyTorch's @record, to the
/// file named by TORCHELASTIC_ERROR_FILE, which ddprun quotes in its verdict. Then the program ends
/// by the same signal as without a report. Function names appear if the program is linked with
/// -rdynamic.
///
/// Signals that are ignored or already have a handler are not changed; with `before_handlers` a
/// handler is called when the report is written, which is for handlers that end the program, too.
/// Further calls have no effect. ProcessGroup::init() and create() make this call in workers of
/// ddprun and torchrun, unless DDPRUN_CRASH_REPORT is 0; a program that makes it first in main()
/// also covers crashes before init().
void install_crash_report(bool before_handlers = false) noexcept;

}  // namespace ddprun
