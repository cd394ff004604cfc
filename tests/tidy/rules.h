#pragma once
// What is checked of each source file besides its includes: width, words and names.

#include <map>
#include <string>
#include <vector>

#include "tests/tidy/layers.h"

namespace ddprun::tidy {

inline constexpr int kColumnsMax = 100;

// Everything wrong with the file `path` (relative to the source root), one line each.
std::vector<std::string> complaints_about(const std::string& path, const std::string& text,
                                          const Layers& layers);

// Enumerators of public headers that are not snake_case, and others that are not kPascalCase.
// Tests, benchmarks and examples may name theirs as they like.
std::vector<std::string> complaints_about_enumerators(const std::string& path,
                                                      const std::string& text);

// The types that `text` defines in namespaces with a name: "ddprun::agent::Exit".
std::vector<std::string> types_in(const std::string& text);

// Types that two files define under one name: whichever of their functions the linker keeps serves
// both. `linked`: texts by path, of files that may be linked into one program.
std::vector<std::string> complaints_about_doubles(const std::map<std::string, std::string>& linked);

// Types of one program that share their last name, in whatever namespaces and files: a reader who
// knows one takes the other for it. The libtorch adapter may wrap a neutral type under its name.
std::vector<std::string> complaints_about_namesakes(
    const std::map<std::string, std::string>& files);

// The lines of prose of the Markdown page `path` that are too wide. Tables, code and lines that are
// nothing but a link may be wider. tests/tidy/wrap_prose.py mends it.
std::vector<std::string> complaints_about_prose(const std::string& path, const std::string& text);

// ... with all .h and .cc files below `root`, in its folders of source, and all pages of it and
// below its docs/ and bench/; headers of the product that share a file name; and types that share a
// name. Reads root/tests/tidy/layers.txt.
std::vector<std::string> complaints_about_tree(const std::filesystem::path& root);

// `text` with comments and literals blanked out, lines kept.
std::string without_words(const std::string& text);

}  // namespace ddprun::tidy
