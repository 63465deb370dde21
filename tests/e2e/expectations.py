# What the scripts of this folder that check the benchmarks' arithmetic share: every wrong result is printed, and one makes
# the script fail.
import sys

num_wrong = 0


def expect(right, text):
    global num_wrong
    if not right:
        print(f"wrong: {text}")
        num_wrong += 1


def end():
    sys.exit(1 if num_wrong else 0)
