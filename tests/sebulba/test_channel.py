import threading
import time

import pytest

from cleanba.sebulba.channel import Channel, ChannelClosed, DevicePriority


def in_thread(work):
    """Start `work`; the returned function joins it and gives its result, or raises its exception."""
    outcome = {}

    def body():
        try:
            outcome["result"] = work()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=body, daemon=True)
    thread.start()

    def result():
        thread.join(timeout=5)
        assert not thread.is_alive(), "still blocked"
        if "error" in outcome:
            raise outcome["error"]
        return outcome["result"]

    return result


def test_waiting_for_the_close_has_a_limit():
    channel = Channel(1)
    assert not channel.wait_closed(0.01)
    threading.Timer(0.05, channel.close).start()
    assert channel.wait_closed(10)


def test_items_come_out_in_the_order_they_went_in():
    channel = Channel(3)
    for item in "abc":
        channel.put(item)
    assert [channel.get() for _ in range(3)] == ["a", "b", "c"]


def test_a_poll_never_waits_and_makes_room():
    channel = Channel(1)
    assert channel.poll() is None
    channel.put("a")
    put = in_thread(lambda: channel.put("b"))
    assert channel.poll() == "a"
    put()
    assert channel.poll() == "b" and channel.poll() is None


def test_put_waits_while_the_channel_is_full():
    channel = Channel(1)
    channel.put(1)
    second = in_thread(lambda: channel.put(2))
    time.sleep(0.05)
    assert channel.get() == 1
    second()
    assert channel.get() == 2


def test_close_wakes_a_waiting_reader_with_the_error():
    channel = Channel(1)
    reader = in_thread(channel.get)
    time.sleep(0.05)
    channel.close(ZeroDivisionError("from another thread"))
    with pytest.raises(ZeroDivisionError, match="from another thread"):
        reader()


def test_close_wakes_a_waiting_writer():
    channel = Channel(1)
    channel.put(1)
    writer = in_thread(lambda: channel.put(2))
    time.sleep(0.05)
    channel.close()
    with pytest.raises(ChannelClosed):
        writer()


def test_what_was_put_before_the_close_is_still_read():
    channel = Channel(2)
    channel.put(1)
    channel.put(2)
    channel.close(ValueError("later"))
    assert (channel.get(), channel.get()) == (1, 2)
    with pytest.raises(ValueError, match="later"):
        channel.get()


def test_the_first_close_counts():
    channel = Channel(1)
    channel.close()
    channel.close(ValueError("too late"))
    with pytest.raises(ChannelClosed):
        channel.get()
    with pytest.raises(ChannelClosed):
        channel.check_open()
    with pytest.raises(ChannelClosed):
        channel.put(1)


def test_iterating_ends_at_a_close_without_error():
    channel = Channel(2)
    channel.put(1)
    channel.put(2)
    channel.close()
    assert list(channel) == [1, 2]


def test_a_channel_without_room_is_refused():
    with pytest.raises(ValueError):
        Channel(0)


# ----------------------------------------------------------------------------------------------- priority


def test_the_learner_yields_to_all_waiting_actors():
    priority, order = DevicePriority(), []
    both_wait = threading.Barrier(3)

    def act(seconds):
        with priority.acquire():
            both_wait.wait()
            time.sleep(seconds)
            order.append("actor")

    actors = [in_thread(lambda s=s: act(s)) for s in (0.02, 0.05)]
    both_wait.wait()
    priority.yield_to(5)
    order.append("learner")
    for actor in actors:
        actor()
    assert order == ["actor", "actor", "learner"]


def test_the_learner_yields_neither_forever_nor_for_nothing():
    priority, forever = DevicePriority(), 10_000
    priority.yield_to(forever)  # nobody is there
    with priority.acquire():
        priority.yield_to(0.02)
    with pytest.raises(RuntimeError), priority.acquire():
        raise RuntimeError
    priority.yield_to(forever)  # whoever failed does not wait any more
