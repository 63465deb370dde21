"""Reads an event folder with the tensorboard package and compares it with what tensorboard_test.cpp wrote."""
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run = EventAccumulator(sys.argv[1])
run.Reload()
found = {tag: [(event.step, event.value) for event in run.Scalars(tag)] for tag in run.Tags()["scalars"]}
expected = {
    "straight": {"actor/pg_loss": [(1, 0.5), (300, 0.25)], "critic/score/mean": [(1, -2.0)]},
    "resumed": {"loss": [(1, 1.0), (2, 22.0), (3, 23.0)]},  # each step once, from the run that has the last word
}[sys.argv[2]]
if found != expected:
    sys.exit(f"tensorboard read {found}, expected {expected}")
