// A program whose shared library is not where the loader looks for it, for fault_campaign.py.
int fault_library();
int main() { return fault_library(); }
