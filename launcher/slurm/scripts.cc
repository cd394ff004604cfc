#include "launcher/slurm/scripts.h"

#include "common/assert.h"
#include "common/embedded_file.h"

DDPRUN_EMBEDDED_FILE(ddprun_one_node_script, DDPRUN_ONE_NODE_SCRIPT);
DDPRUN_EMBEDDED_FILE(ddprun_nodes_script, DDPRUN_NODES_SCRIPT);
DDPRUN_EMBEDDED_FILE(ddprun_spot_script, DDPRUN_SPOT_SCRIPT);
DDPRUN_EMBEDDED_FILE(ddprun_elastic_script, DDPRUN_ELASTIC_SCRIPT);
DDPRUN_EMBEDDED_FILE(ddprun_daemon_script, DDPRUN_DAEMON_SCRIPT);

namespace ddprun::launcher {

std::string_view text_of(SlurmScript script) {
  switch (script) {
    case SlurmScript::kOneNode: return {ddprun_one_node_script, ddprun_one_node_script_end};
    case SlurmScript::kNodes: return {ddprun_nodes_script, ddprun_nodes_script_end};
    case SlurmScript::kSpot: return {ddprun_spot_script, ddprun_spot_script_end};
    case SlurmScript::kElastic: return {ddprun_elastic_script, ddprun_elastic_script_end};
    case SlurmScript::kDaemon: return {ddprun_daemon_script, ddprun_daemon_script_end};
  }
  DDPRUN_ASSERT(false);
}

}  // namespace ddprun::launcher
