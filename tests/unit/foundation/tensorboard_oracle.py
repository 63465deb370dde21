"""Reads an event folder with the tensorboard package and compares it with what tensorboard_test.cpp wrote."""
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run = EventAccumulator(sys.argv[1], purge_orphaned_data=False)
run.Reload()
found = {tag: [(event.step, event.value) for event in run.Scalars(tag)] for tag in run.Tags()["scalars"]}
expected = {"actor/pg_loss": [(1, 0.5), (300, 0.25)], "critic/score/mean": [(1, -2.0)]}
if found != expected:
    sys.exit(f"tensorboard read {found}, expected {expected}")
