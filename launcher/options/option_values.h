#pragma once
// The text of one option -> its typed value; parsers that all programs use are in
// common/options/option.h. The failure of a parser only describes what is allowed ("give N or
// MIN:MAX, ..."); the table of options puts the option and the offending text before it. Pure.

#include <string>
#include <string_view>
#include <vector>

#include "common/options/option.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

Result<std::string> parse_run_id(std::string_view text);        // Any, without control characters.
Result<NodeRange> parse_nnodes(std::string_view text);          // "2", "1:4"
Result<WorkerCount> parse_worker_count(std::string_view text);  // "8", "auto", "gpu", "cpu"
Result<std::uint16_t> parse_port(std::string_view text);        // 0..65535; 0 is "any"
Result<PortRange> parse_port_range(std::string_view text);      // "29500-29599"
Result<Endpoint> parse_endpoint(std::string_view text);         // "host", "host:1", "[::1]:1"
Result<std::vector<Endpoint>> parse_endpoints(std::string_view text);  // "a:1,b:2"
Result<Milliseconds> parse_seconds(std::string_view text);             // "30", "0.25"
Result<Milliseconds> parse_some_seconds(std::string_view text);        // More than 0.
Result<Milliseconds> parse_chaos(std::string_view text);               // At least 0.1.
Result<std::string> parse_audit(std::string_view text);                // "1", "0.5%"
Result<std::uint64_t> parse_seed(std::string_view text);
Result<StreamMap> parse_stream_map(std::string_view text);              // "3", "0:1,11:2"
Result<agent::LogRotation> parse_rotation(std::string_view text);       // "100M", "64K:9"
Result<std::vector<std::string>> parse_needles(std::string_view text);  // "a,b"; ",," is a comma
Result<std::vector<int>> parse_local_ranks(std::string_view text);      // "0,3"
Result<std::vector<int>> parse_signals(std::string_view text);          // "SIGTERM,SIGUSR1"
// Splits "ssh -p 2222" or "ssh -o 'ProxyCommand=nc %h %p'" into the words of a shell, with its
// quotation marks.
Result<std::vector<std::string>> parse_words(std::string_view text);
Result<std::vector<std::string>> parse_variable_names(std::string_view text);  // "HOME,LANG"
Result<std::string> parse_preload(std::string_view text);  // "auto", "torch,numpy"; "off": empty
Result<agent::StdinChoice> parse_stdin(std::string_view text);  // "0", "all", "none"
// "4G", "512M,copies=off,rate=100M,at=/mnt/tmpfs"
Result<MemoryFolder> parse_memory_folder(std::string_view text);
Result<RdzvConf> parse_rdzv_conf(std::string_view text);  // "join_timeout=5,auth=none"

}  // namespace ddprun::launcher
