# The counting itself: a tally that loses failures would make every other test worthless.
load helper

setup() {
	cd "$BATS_TEST_TMPDIR" || return 1
}

tally() {
	run sh "$DS_ROOT/tests/tally" "$@"
}

@test "passes and failures are counted, a failure is shown with its diagnostics" {
	printf '1..3\nok 1 - a\nnot ok 2 - b\n# got 3\nok 3 - c\n# exit 1\n' >one.tap
	tally one.tap
	assert_failure 1
	assert_line 'FAILED one: b'
	assert_line '    # got 3'
	assert_line --index -1 '2 passed, 1 failed'
}

@test "all passed: exit status 0" {
	printf 'ok 1 - a\nok 2 - b\n1..2\n# exit 0\n' >one.tap
	tally one.tap
	assert_success
	assert_line --index -1 '2 passed, 0 failed'
}

@test "planned but silent tests have failed" {
	printf '1..5\nok 1 - a\n# exit 139\n' >one.tap
	tally one.tap
	assert_failure 1
	assert_line --index -1 '1 passed, 4 failed'
}

@test "a program that dies before its plan has failed" {
	printf 'ok 1 - a\nok 2 - b\n# exit 139\n' >one.tap
	tally one.tap
	assert_failure 1
	assert_line --index -1 '2 passed, 1 failed'
}

@test "a bad exit status after good tests is a failure" {
	printf '1..1\nok 1 - a\n# exit 99\n' >one.tap
	tally one.tap
	assert_failure 1
	assert_line --index -1 '1 passed, 1 failed'
}

@test "an empty log, an empty plan, and a log that nobody finished are failures" {
	printf '# exit 0\n' >one.tap
	printf '1..0\n# exit 0\n' >two.tap
	printf '1..1\nok 1 - a\n' >three.tap
	tally one.tap two.tap three.tap
	assert_failure 1
	assert_line --index -1 '1 passed, 3 failed'
}

@test "skips are shown and are neither passed nor failed" {
	printf '1..2\nok 1 - a # skip why not\nok 2 # SKIP because\n# exit 0\n' >one.tap
	tally one.tap
	assert_failure 1
	assert_line 'SKIP one: a # skip why not'
	assert_line '2 skipped'
	assert_line --index -1 '0 passed, 0 failed'
}

@test "a bail-out is a failure and is shown" {
	printf 'ok 1 - a\nBail out! no disk\n# exit 1\n' >one.tap
	tally one.tap
	assert_failure 1
	assert_output --partial 'no disk'
	assert_line --index -1 '1 passed, 1 failed'
}

@test "more tests than planned are a failure" {
	printf '1..1\nok 1 - a\nok 2 - b\n# exit 0\n' >one.tap
	tally one.tap
	assert_failure 1
	assert_line --index -1 '2 passed, 1 failed'
}
