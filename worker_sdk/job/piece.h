#pragma once
// The name of a piece of a step: by it the launcher recognises one that has ended two processes.
// Its first part, before ": ", is what seats name (common/worker_link.h). Pure.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/elastic/global_batches.h"

namespace ddprun::elastic {

// "step 7, shard 3"
std::string piece_of(std::int64_t step, int shard);

// Whether `pieces`, separated by "; ", has `piece`.
bool has_piece(std::string_view pieces, std::string_view piece);

// "samples 5, 9 and 62 more"; of several sets "5 of set 1".
std::string text_of(const std::vector<Sample>& samples);

}  // namespace ddprun::elastic
