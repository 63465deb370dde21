# Reads ctest's LastTest.log; prints "PASSED FAILED SKIPPED" and, after them, the names of what failed or was skipped.
# A GoogleTest program counts case by case, any other test as one. A program that dies counts its unfinished case as failed;
# a test that failed in another way (time-out, missing program) counts as one failure at least.
function close_block() {
  if (name == "") return
  if (verdict == "Test Skipped." || verdict == "Skipped" ) { skipped++; print_skipped = print_skipped "  skipped: " name "\n" }
  else if (verdict == "Disabled") { skipped++; print_skipped = print_skipped "  skipped: " name "\n" }
  else {
    bad = case_failed + case_started - case_ended
    if (verdict != "Test Passed." && bad == 0) { bad = 1; print_failed = print_failed "  failed: " name "\n" }
    if (case_started == 0 && verdict == "Test Passed.") passed++
    passed += case_ok; failed += bad; skipped += case_skipped
  }
  name = ""
}
