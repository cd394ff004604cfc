"""What a store must do, case by case: each is a short dialogue whose outcome is compared with `want`.

A case is a function of a Visit (store_conformance.py), which gives it connections and keys of its own. Both dialects
unless it says otherwise.
"""




CASES = []
CLOSED = "closed"


def case(want, dialects=("old", "new"), ours_only=False):
    def enlist(function):
        function.want, function.dialects, function.ours_only = want, dialects, ours_only
        CASES.append(function)
        return function
    return enlist


NEW, OLD = ("new",), ("old",)
EVERY_BYTE = bytes(range(256))


# Values.

@case(b"v")
def set_then_get(v):
    c = v.connect()
    c.set(v.key("k"), b"v")
    return c.get(v.key("k"))


@case(b"second")
def set_again_replaces(v):
    c = v.connect()
    c.set(v.key("k"), b"first")
    c.set(v.key("k"), b"second")
    return c.get(v.key("k"))


@case(b"")
def get_of_a_missing_key(v):
    return v.connect().get(v.key("k"))


@case((b"", True))
def an_empty_value_is_there(v):
    c = v.connect()
    c.set(v.key("k"), b"")
    return c.get(v.key("k")), c.check(v.key("k"))


@case(b"nameless")
def an_empty_key_is_a_key(v):
    c = v.connect()
    c.set(b"", b"nameless")
    value = c.get(b"")
    c.delete(b"")
    return value


@case(EVERY_BYTE)
def keys_and_values_hold_every_byte(v):
    c = v.connect()
    c.set(v.key("k") + EVERY_BYTE, EVERY_BYTE)
    return c.get(v.key("k") + EVERY_BYTE)


@case(True)
def a_value_of_one_mebibyte(v):
    c, value = v.connect(), EVERY_BYTE * 4096
    c.set(v.key("k"), value)
    return c.get(v.key("k")) == value


@case([b"d", b"c"])
def another_connection_sees_it(v):
    a, b = v.connect(), v.connect()
    a.set(v.key("k"), b"c")
    a.check(v.key("k"))
    first = b.get(v.key("k"))
    b.set(v.key("k"), b"d")
    b.check(v.key("k"))
    return [a.get(v.key("k")), first]


# Counters.

@case((5, 3, b"3"))
def add_makes_a_counter_that_is_decimal_text(v):
    c = v.connect()
    return c.add(v.key("n"), 5), c.add(v.key("n"), -2), c.get(v.key("n"))


@case((42, 0, -1))
def add_goes_on_from_a_number_that_was_set(v):
    c = v.connect()
    c.set(v.key("n"), b"41")
    return c.add(v.key("n"), 1), c.add(v.key("n"), -42), c.add(v.key("n"), -1)


@case(17)
def add_reads_a_number_as_far_as_it_goes(v):
    c = v.connect()
    c.set(v.key("n"), b" 12abc")
    return c.add(v.key("n"), 5)


@case(2**63 - 1)
def add_reaches_the_largest_number(v):
    return v.connect().add(v.key("n"), 2**63 - 1)


@case(CLOSED)
def add_to_what_is_no_number(v):
    c = v.connect()
    c.set(v.key("n"), b"abc")
    return c.add(v.key("n"), 1)


@case(CLOSED, ours_only=True)  # Theirs overflow, which C++ leaves undefined.
def add_beyond_the_largest_number(v):
    c = v.connect()
    c.add(v.key("n"), 2**63 - 1)
    return c.add(v.key("n"), 1)


# Compare and set.

@case((b"d", b"d"))
def compare_set_of_a_missing_key_that_is_expected_empty(v):
    c = v.connect()
    return c.compare_set(v.key("k"), b"", b"d"), c.get(v.key("k"))


@case((b"e", False))
def compare_set_of_a_missing_key_gives_back_what_was_expected(v):
    c = v.connect()
    return c.compare_set(v.key("k"), b"e", b"d"), c.check(v.key("k"))


@case((b"b", b"b", b"b"))
def compare_set_stores_only_if_equal(v):
    c = v.connect()
    c.set(v.key("k"), b"a")
    return (c.compare_set(v.key("k"), b"a", b"b"), c.compare_set(v.key("k"), b"a", b"c"),
            c.compare_set(v.key("k"), b"", b"c"))


# Presence.

@case((True, False, False, True))
def check_asks_for_all(v):
    c = v.connect()
    c.set(v.key("a"), b"1")
    return c.check(v.key("a")), c.check(v.key("b")), c.check(v.key("a"), v.key("b")), c.check()


@case((1, 0, False))
def delete_says_whether_there_was_one(v):
    c = v.connect()
    c.set(v.key("k"), b"v")
    return c.delete(v.key("k")), c.delete(v.key("k")), c.check(v.key("k"))


@case((2, 1))
def num_keys_counts_what_is_there(v):
    c = v.connect()
    before = c.num_keys()
    c.set(v.key("a"), b"1")
    c.add(v.key("b"), 1)
    both = c.num_keys()
    c.delete(v.key("a"))
    return both - before, c.num_keys() - before


# Waiting.

@case(["go", "go"])
def wait_for_what_is_there_ends_at_once(v):
    c = v.connect()
    c.set(v.key("a"), b"1")
    c.set(v.key("b"), b"2")
    c.wait(v.key("a"), v.key("b"))
    both = c.told()
    c.wait()
    return [both, c.told()]


def woken_by(v, act, keys=("k",)):
    waiter, other = v.connect(), v.connect()
    waiter.wait(*map(v.key, keys))
    v.settle()
    act(other)
    return waiter.told()


@case("go")
def wait_ends_with_set(v):
    return woken_by(v, lambda c: c.set(v.key("k"), b"v"))


@case("go")
def wait_ends_with_add(v):
    return woken_by(v, lambda c: c.add(v.key("k"), 1))


@case("go")
def wait_ends_with_compare_set(v):
    def act(c):
        c.compare_set(v.key("k"), b"", b"v")
    return woken_by(v, act)


@case("go", NEW)
def wait_ends_with_append(v):
    return woken_by(v, lambda c: c.append(v.key("k"), b"v"))


@case("go", NEW)
def wait_ends_with_multi_set(v):
    return woken_by(v, lambda c: c.multi_set((v.key("other"), b"1"), (v.key("k"), b"v")))


@case("go", NEW)
def wait_ends_with_an_element_of_a_queue(v):
    return woken_by(v, lambda c: c.push(v.key("k"), b"v"))


@case("go")
def wait_for_several_keys_ends_with_the_last(v):
    def act(c):
        c.set(v.key("b"), b"1")
        c.add(v.key("a"), 1)
        c.set(v.key("c"), b"1")
    return woken_by(v, act, ("a", "b", "c"))


@case(["go"] * 20)
def one_key_ends_every_wait_for_it(v):
    waiters = [v.connect() for _ in range(20)]
    for waiter in waiters:
        waiter.wait(v.key("k"))
    v.settle()
    v.connect().set(v.key("k"), b"v")
    return [waiter.told() for waiter in waiters]


@case("go")
def a_key_that_was_there_counts_though_it_is_deleted(v):
    def act(c):
        c.set(v.key("a"), b"1")
        c.delete(v.key("a"))
        c.set(v.key("b"), b"1")
    return woken_by(v, act, ("a", "b"))


@case(("canceled", 7), NEW)
def delete_ends_no_wait_and_cancel_does(v):
    waiter, other = v.connect(), v.connect()
    waiter.wait(v.key("k"))
    v.settle()
    other.delete(v.key("k"))
    other.set(v.key("unrelated"), b"v")
    v.settle()
    waiter.cancel()
    return waiter.told(), waiter.add(v.key("n"), 7)


@case(["canceled", True], NEW)
def a_canceled_wait_is_not_answered_later(v):
    waiter, other = v.connect(), v.connect()
    waiter.wait(v.key("k"))
    waiter.cancel()
    told = waiter.told()
    other.set(v.key("k"), b"v")
    v.settle()
    return [told, waiter.check(v.key("k"))]


@case((1, b"v"))
def a_wait_given_up_without_a_word_is_not_answered_later(v):
    """As 1.13's clients do after a timeout."""
    waiter, other = v.connect(), v.connect()
    waiter.wait(v.key("k"))
    v.settle()
    first = waiter.add(v.key("n"), 1)
    other.set(v.key("k"), b"v")
    v.settle()
    return first, waiter.get(v.key("k"))


@case("go")
def a_waiter_that_goes_away_takes_nobody_with_it(v):
    gone = v.connect()
    gone.wait(v.key("k"))
    v.settle()
    gone.close()
    return woken_by(v, lambda c: c.set(v.key("k"), b"v"))


# Watching; only 1.13 has it, on a connection of its own.

@case((3, (1, True, b"", b"a"), (0, True, b"a", b"b"), (2, True, b"b", b"")), OLD)
def watch_tells_of_each_change(v):
    watcher, other = v.connect(), v.connect()
    begun = watcher.watch(v.key("k"))
    other.set(v.key("k"), b"a")
    other.set(v.key("k"), b"b")
    other.delete(v.key("k"))
    changes = [watcher.change() for _ in range(3)]
    return (begun, *((kind, key == v.key("k"), before, after) for kind, key, before, after in changes))


# What 2.2+ has and 1.13 has not.

@case((7, 4294967295), NEW)
def ping_gives_the_number_back(v):
    c = v.connect()
    return c.ping(7), c.ping(2**32 - 1)


@case(b"123", NEW)
def append_makes_and_extends(v):
    c = v.connect()
    c.append(v.key("k"), b"1")
    c.append(v.key("k"), b"23")
    return c.get(v.key("k"))


@case([b"1", b"22"], NEW)
def multi_set_then_multi_get(v):
    c = v.connect()
    c.multi_set((v.key("x"), b"1"), (v.key("y"), b"22"))
    return c.multi_get(v.key("x"), v.key("y"))


@case(([], 1), NEW)
def multi_get_and_multi_set_of_nothing(v):
    c = v.connect()
    c.multi_set()
    return c.multi_get(), c.add(v.key("n"), 1)


@case((2, b"a", b"b", None, 0), NEW)
def a_queue_is_first_in_first_out(v):
    c = v.connect()
    c.push(v.key("q"), b"a")
    c.push(v.key("q"), b"b")
    return c.length(v.key("q")), c.pop(v.key("q")), c.pop(v.key("q")), c.pop(v.key("q")), c.length(v.key("q"))


@case((True, False), NEW)
def a_queue_is_there_while_it_has_elements(v):
    c = v.connect()
    c.push(v.key("q"), b"a")
    before = c.check(v.key("q"))
    c.pop(v.key("q"))
    return before, c.check(v.key("q"))


@case(["go", b"a", "go", b"b"], NEW)
def one_element_ends_one_wait(v):
    first, second, other = v.connect(), v.connect(), v.connect()
    first.wait(v.key("q"))
    v.settle()
    second.wait(v.key("q"))
    v.settle()
    other.push(v.key("q"), b"a")
    told = [first.told(), first.pop(v.key("q"))]
    other.push(v.key("q"), b"b")
    return told + [second.told(), second.pop(v.key("q"))]


@case([b"a", b"b"], NEW)
def list_keys_names_each(v):
    c, prefix = v.connect(), v.key("")
    c.set(v.key("b"), b"1")
    c.add(v.key("a"), 1)
    return sorted(key[len(prefix):] for key in c.list_keys() if key.startswith(prefix))


@case("go", NEW)
def barrier_of_one(v):
    c = v.connect()
    c.barrier(v.key("b"), 1)
    return c.told()


@case((["go"] * 4, 4), NEW)
def barrier_of_four(v):
    clients = [v.connect() for _ in range(4)]
    for client in clients:
        client.barrier(v.key("b"), 4)
        v.settle()
    return [client.told() for client in clients], clients[0].add(v.key("b"), 0)


@case("canceled", NEW)
def barrier_can_be_given_up(v):
    c = v.connect()
    c.barrier(v.key("b"), 2)
    c.cancel()
    return c.told()
