// The library that fault_needs_library does not find.
int fault_library() { return 0; }
