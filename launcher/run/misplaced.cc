#include "launcher/run/misplaced.h"

#include <algorithm>
#include <cctype>

#include "launcher/options/flags.h"

namespace ddprun::launcher {
namespace {

bool is_part_of_a_word(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '-' || letter == '_';
}

bool mentions(std::string_view text, std::string_view word) {
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string_view::npos; ++at) {
    const std::size_t end = at + word.size();
    const bool begins = at == 0 || !is_part_of_a_word(text[at - 1]);
    if (begins && (end == text.size() || !is_part_of_a_word(text[end]))) return true;
  }
  return false;
}

// "--max_restarts=3" -> "--max_restarts", if ddprun has that flag and does more than print.
std::string own_flag(const std::string& argument) {
  const std::string word = argument.substr(0, argument.find('='));
  if (!word.starts_with("--")) return "";
  std::string name = word.substr(2);
  std::replace(name.begin(), name.end(), '_', '-');
  const Option* option = find_option(all_options(), name);
  return option != nullptr && option->kind != Option::Kind::kPrint ? word : "";
}

}  // namespace

std::string misplaced_flag_hint(const std::string& program,
                                const std::vector<std::string>& arguments,
                                std::string_view last_words) {
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    const std::string flag = own_flag(argument);
    if (flag.empty() || !mentions(last_words, flag)) continue;
    return "hint: " + flag + " stands after " + program + ", so it is " + program +
           "'s; ddprun's flags stand before PROGRAM";
  }
  return "";
}

// Python's message about tcp://fd01::1:29500: it takes the port to begin at the first colon.
std::string bare_ipv6_hint(std::string_view last_words) {
  if (last_words.find("Port could not be cast to integer value as ':") == std::string_view::npos) {
    return "";
  }
  return "hint: MASTER_ADDR is an IPv6 address, which needs brackets in a URL: "
         "tcp://[$MASTER_ADDR]:$MASTER_PORT; or call init_process_group without init_method";
}

}  // namespace ddprun::launcher
