"""How many items run at a time."""

from __future__ import annotations

from sluice.gateway.batch.window import Window, WindowConfig


def fill(window: Window, now: float) -> int:
    room = window.room(now)
    for _ in range(room):
        window.began()
    return room


def serve(window: Window, items: int, now: float) -> None:
    """So many items are answered while the window is kept full."""
    for _ in range(items):
        fill(window, now)
        window.answered(now, now + 1, 0.0)


def test_it_doubles_until_the_first_refusal_and_then_creeps() -> None:
    window = Window(WindowConfig(first=4, most=64))
    serve(window, 4, 0.0)
    assert window.size == 8
    serve(window, 8, 1.0)
    assert window.size == 16
    window.refused(2.0, 3.0, 0.0)
    assert window.size == 11
    serve(window, 12, 3.0)
    assert window.size == 12


def test_it_grows_to_its_bound_only() -> None:
    window = Window(WindowConfig(first=4, most=6))
    for _ in range(50):
        fill(window, 0.0)
        window.answered(0.0, 1.0, 0.0)
    assert window.size == 6


def test_it_does_not_grow_by_what_is_not_used() -> None:
    window = Window(WindowConfig(first=4))
    for _ in range(50):
        window.began()
        window.answered(0.0, 1.0, 0.0)
    assert window.size == 4


def test_refusals_of_one_moment_count_once_and_one_item_always_runs() -> None:
    window = Window(WindowConfig(first=10, most=10, decrease=0.5))
    fill(window, 0.0)
    for _ in range(10):
        window.refused(0.0, 1.0, 0.0)
    assert window.size == 5
    for now in range(2, 20):
        window.began()
        window.refused(float(now), now + 0.5, 0.0)
    assert window.size == 1
    assert window.room(100.0) == 1


def test_it_rests_for_as_long_as_it_is_told() -> None:
    window = Window(WindowConfig())
    window.began()
    window.refused(0.0, 1.0, 30.0)
    assert window.room(30.9) == 0
    assert window.room(31.1) > 0


def test_a_wait_in_a_queue_is_a_refusal() -> None:
    window = Window(WindowConfig(first=10, patience=0.5))
    fill(window, 0.0)
    window.answered(0.0, 2.0, 0.6)
    assert window.size == 7
