#pragma once
// The names of all facts, and their units. A new fact is a line here, a line in its probe and a
// check that reads it. Pure.

#include "launcher/doctor/node_facts.h"

namespace ddprun::doctor::fact {

inline constexpr std::int64_t kNoLimit = -1;  // Of a limit: unlimited.

// Who and what: probe "node".
inline constexpr Text kHost{"host"};
inline constexpr Text kVersion{"version"};  // Of ddprun.
inline constexpr Text kKernel{"kernel"};    // "6.1.0 x86_64".
inline constexpr Text kLibc{"libc"};
inline constexpr Whole kUser{"user"};
inline constexpr Whole kWallNs{"wall_ns"};              // Since 1970.
inline constexpr Real kClockErrorMs{"clock_error_ms"};  // As the kernel estimates it; absent: free.

inline constexpr Whole kWorkers{"workers"};  // That would be started there.

// Limits; kNoLimit if there is none. Probe "limits".
inline constexpr Whole kFilesSoft{"files_soft"};
inline constexpr Whole kFilesHard{"files_hard"};
inline constexpr Whole kLocked{"locked_bytes"};
inline constexpr Whole kCore{"core_bytes"};
inline constexpr Text kCorePattern{"core_pattern"};
inline constexpr Whole kTasksLeft{"tasks_left"};  // Processes and threads that may still be made.
inline constexpr Text kTasksBy{"tasks_by"};       // What allows no more of them.
inline constexpr Whole kInfiniBand{"infiniband_devices"};

// Probe "storage".
inline constexpr Whole kShmFree{"shm_free_bytes"};
inline constexpr Whole kShmSize{"shm_bytes"};
inline constexpr Text kShmError{"shm_error"};  // Why nothing can be written there.
inline constexpr Text kTmp{"tmp"};
inline constexpr Whole kTmpFree{"tmp_free_bytes"};
inline constexpr Whole kTmpInodes{"tmp_free_inodes"};
inline constexpr Whole kTmpNoExec{"tmp_noexec"};  // 0 or 1.
inline constexpr Text kTmpError{"tmp_error"};

// Probe "cpu".
inline constexpr Whole kProcessors{"processors"};  // That this process may use.
inline constexpr Real kQuota{"cpu_quota"};         // In processors; absent: none.
inline constexpr Whole kMemoryLeft{"memory_left_bytes"};
inline constexpr Text kMemoryBy{"memory_by"};  // "machine" or "cgroup".
inline constexpr Text kCgroup{"cgroup"};       // Of version 2, where one can be made; else empty.
inline constexpr Text kGovernor{"governor"};
inline constexpr Text kGovernorDriver{"governor_driver"};
inline constexpr Whole kMemoryErrors{"memory_errors"};  // Uncorrectable, since the boot.
inline constexpr Whole kGpuXids{"gpu_xids"};            // Lines of the kernel's log.
inline constexpr Text kGpuXid{"gpu_xid"};               // The last of them that is a fault.

// Probe "names".
inline constexpr Text kOwnAddresses{"own_addresses"};  // Of the host's name; empty: unknown name.
inline constexpr Real kNameMs{"name_ms"};              // What the look-up took.

// Probe "network". Items of "interfaces".
inline constexpr std::string_view kInterfaces = "interfaces";
inline constexpr Text kInterface{"interface"};
inline constexpr Text kAddress{"address"};
inline constexpr Whole kMtu{"mtu"};
inline constexpr Whole kSpeed{"speed_mbit"};
inline constexpr Whole kErrors{"errors"};    // Packets that were damaged, either way.
inline constexpr Whole kPackets{"packets"};  // Either way.
inline constexpr Whole kPort{"port"};
inline constexpr Text kPortError{"port_error"};  // Why nobody can listen there.
inline constexpr Real kLoopback{"loopback_gb_s"};
inline constexpr Text kLoopbackError{"loopback_error"};

// Probe "gpu". Items of "gpus".
inline constexpr Text kDriver{"gpu_driver"};
inline constexpr Whole kGpuDevices{"gpu_devices"};  // Files in /dev.
inline constexpr std::string_view kGpus = "gpus";
inline constexpr Text kGpuName{"name"};
inline constexpr Whole kGpuEcc{"ecc_uncorrected"};
inline constexpr Whole kGpuRemap{"remap_pending"};
inline constexpr Whole kGpuRemapFailed{"remap_failed"};
inline constexpr Whole kGpuThrottle{"throttle"};  // NVML's bits.
inline constexpr Whole kGpuCelsius{"celsius"};
inline constexpr Whole kGpuWidth{"pcie_width"};
inline constexpr Whole kGpuWidthMax{"pcie_width_max"};
inline constexpr Whole kGpuLinks{"links_up"};
inline constexpr Whole kGpuLinksDown{"links_down"};
inline constexpr Whole kGpuMemory{"memory_bytes"};
inline constexpr Whole kGpuMemoryUsed{"memory_used_bytes"};
inline constexpr Whole kGpuMode{"compute_mode"};
inline constexpr Text kGpuHolders{"holders"};  // "pid 12 (python3)", with commas.
inline constexpr Whole kGpuHolder{"holder"};   // The first pid of them.

// Probe "leftovers". Items of "leftovers".
inline constexpr std::string_view kLeftovers = "leftovers";
inline constexpr Text kLeft{"what"};
inline constexpr Text kLeftCure{"cure"};

// Probe "program". Items of "files": name, path, hash.
inline constexpr std::string_view kFiles = "files";
inline constexpr Text kFileName{"name"};
inline constexpr Text kFileVersion{"version"};
inline constexpr Text kFileHash{"hash"};
inline constexpr Text kProgramError{"program_error"};

// Probe "speed".
inline constexpr Real kChunkMs{"chunk_ms"};       // Of computing, the fastest of many.
inline constexpr Real kMemoryGbS{"memory_gb_s"};  // Copied, the fastest of a few.
inline constexpr Text kBits{"bits"};              // Hash of what was computed.

// Measured between nodes, by launcher/doctor.
inline constexpr Real kClockOffsetMs{"clock_offset_ms"};  // Against the first node.
inline constexpr Real kClockDoubtMs{"clock_doubt_ms"};    // More or less.
inline constexpr Real kMeetMs{"meet_ms"};                 // To the endpoint.
inline constexpr Text kMeetError{"meet_error"};
inline constexpr Text kMeetAddress{"meet_address"};  // Ours, as the endpoint sees it.
inline constexpr Whole kListening{"listening_port"};
inline constexpr Whole kEndpoint{"endpoint_port"};
inline constexpr Text kEndpointError{"endpoint_error"};
inline constexpr std::string_view kPeers = "peers";  // Items: one a peer.
inline constexpr Text kPeer{"peer"};
inline constexpr Real kPeerMs{"ms"};
inline constexpr Text kPeerError{"error"};
inline constexpr Real kPeerGbS{"gb_s"};
inline constexpr Whole kPeerSent{"segments"};
inline constexpr Whole kPeerAgain{"segments_again"};  // Sent more than once.

}  // namespace ddprun::doctor::fact
