// A program with a shared library that the loader does not find, for fault_campaign.py.
int fault_library();
int main() { return fault_library(); }
