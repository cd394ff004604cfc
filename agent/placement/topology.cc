#include "agent/placement/topology.h"

#include <dlfcn.h>
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <memory>

namespace ddprun::agent {
namespace {

// What is used of hwloc 2.
struct Hwloc {
  decltype(&::hwloc_topology_init) topology_init;
  decltype(&::hwloc_topology_set_synthetic) topology_set_synthetic;
  decltype(&::hwloc_topology_load) topology_load;
  decltype(&::hwloc_topology_destroy) topology_destroy;
  decltype(&::hwloc_get_type_depth) get_type_depth;
  decltype(&::hwloc_get_nbobjs_by_depth) get_nbobjs_by_depth;
  decltype(&::hwloc_get_obj_by_depth) get_obj_by_depth;
  decltype(&::hwloc_bitmap_next) bitmap_next;
  decltype(&::hwloc_bitmap_isincluded) bitmap_isincluded;
  decltype(&::hwloc_get_api_version) get_api_version;
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

// Stays loaded.
Result<Hwloc> load_hwloc() {
  void* library = ::dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    return Failure{Errc::kNotFound,
                   "binding to processors needs libhwloc.so.15 (package libhwloc15)"};
  }
  Hwloc hwloc{};
  const bool whole = find(library, "hwloc_topology_init", hwloc.topology_init) &&
                     find(library, "hwloc_topology_set_synthetic", hwloc.topology_set_synthetic) &&
                     find(library, "hwloc_topology_load", hwloc.topology_load) &&
                     find(library, "hwloc_topology_destroy", hwloc.topology_destroy) &&
                     find(library, "hwloc_get_type_depth", hwloc.get_type_depth) &&
                     find(library, "hwloc_get_nbobjs_by_depth", hwloc.get_nbobjs_by_depth) &&
                     find(library, "hwloc_get_obj_by_depth", hwloc.get_obj_by_depth) &&
                     find(library, "hwloc_bitmap_next", hwloc.bitmap_next) &&
                     find(library, "hwloc_bitmap_isincluded", hwloc.bitmap_isincluded) &&
                     find(library, "hwloc_get_api_version", hwloc.get_api_version);
  if (!whole || hwloc.get_api_version() >> 16 != HWLOC_API_VERSION >> 16) {
    return Failure{Errc::kNotFound, "libhwloc.so.15 is not hwloc 2"};
  }
  return hwloc;
}

class Reader {
 public:
  Reader(const Hwloc& hwloc, hwloc_topology_t topology, bool ours)
      : hwloc_(hwloc), topology_(topology) {
    if (ours) ok_ = ::sched_getaffinity(0, sizeof allowed_, &allowed_) == 0;
  }

  Machine read() const {
    Machine machine;
    for (const hwloc_obj_t numa : objects(HWLOC_OBJ_NUMANODE)) {
      NumaNode node;
      node.number = static_cast<int>(numa->os_index);
      node.socket = socket_of(numa);
      node.cores = parts(numa, {HWLOC_OBJ_CORE});
      // The outermost cache that is not larger than the node.
      node.caches = parts(numa, {HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L1CACHE});
      if (!node.cores.empty()) machine.nodes.push_back(std::move(node));
    }
    return machine;
  }

 private:
  std::vector<hwloc_obj_t> objects(hwloc_obj_type_t type) const {
    std::vector<hwloc_obj_t> found;
    const int depth = hwloc_.get_type_depth(topology_, type);
    if (depth == HWLOC_TYPE_DEPTH_UNKNOWN || depth == HWLOC_TYPE_DEPTH_MULTIPLE) return found;
    const unsigned count = hwloc_.get_nbobjs_by_depth(topology_, depth);
    for (unsigned i = 0; i < count; ++i)
      found.push_back(hwloc_.get_obj_by_depth(topology_, depth, i));
    return found;
  }

  std::vector<int> processors(hwloc_const_bitmap_t set) const {
    std::vector<int> numbers;
    for (int i = hwloc_.bitmap_next(set, -1); i >= 0; i = hwloc_.bitmap_next(set, i)) {
      const bool may =
          !ok_ || i >= CPU_SETSIZE || CPU_ISSET(static_cast<std::size_t>(i), &allowed_);
      if (may) numbers.push_back(i);
    }
    return numbers;
  }

  int socket_of(hwloc_obj_t numa) const {
    for (const hwloc_obj_t package : objects(HWLOC_OBJ_PACKAGE)) {
      if (hwloc_.bitmap_isincluded(numa->cpuset, package->cpuset))
        return static_cast<int>(package->os_index);
    }
    return -1;
  }

  // What the node has of the first of these types that it has any of.
  std::vector<std::vector<int>> parts(hwloc_obj_t numa,
                                      const std::vector<hwloc_obj_type_t>& types) const {
    std::vector<std::vector<int>> found;
    for (const hwloc_obj_type_t type : types) {
      for (const hwloc_obj_t object : objects(type)) {
        if (!hwloc_.bitmap_isincluded(object->cpuset, numa->cpuset)) continue;
        std::vector<int> numbers = processors(object->cpuset);
        if (!numbers.empty()) found.push_back(std::move(numbers));
      }
      if (!found.empty()) break;
    }
    return found;
  }

  const Hwloc& hwloc_;
  hwloc_topology_t topology_;
  bool ok_ = false;
  cpu_set_t allowed_{};
};

}  // namespace

Result<Machine> read_machine(const std::string& synthetic) {
  const auto hwloc = load_hwloc();
  if (!hwloc) return hwloc.error();
  hwloc_topology_t topology = nullptr;
  if (hwloc->topology_init(&topology) != 0) return errno_failure("starting hwloc");
  const std::unique_ptr<hwloc_topology, decltype(hwloc->topology_destroy)> owner(
      topology, hwloc->topology_destroy);
  if (!synthetic.empty() && hwloc->topology_set_synthetic(topology, synthetic.c_str()) != 0) {
    return errno_failure("the synthetic topology " + synthetic);
  }
  if (hwloc->topology_load(topology) != 0) return errno_failure("reading the machine's topology");
  return Reader(*hwloc, topology, synthetic.empty()).read();
}

}  // namespace ddprun::agent
