#pragma once

namespace ddprun {

// Raises this process's soft limit on open descriptors to its hard limit. A daemon needs one for
// each agent, an agent several for each worker; the usual soft limit of 1,024 is for programs that
// select().
void raise_descriptor_limit();

}  // namespace ddprun
