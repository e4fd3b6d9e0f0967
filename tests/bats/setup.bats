# The first minute of a new user: setup, deps, install.
load helper

@test "setup --help says what it does, an unknown argument is refused with 64" {
	run -0 sh "$DS_ROOT/setup" --help
	assert_output --partial 'usage: ./setup'
	run -64 sh "$DS_ROOT/setup" --no-such
}

@test "setup, tests/deps and tests/unpack use nothing but POSIX sh" {
	need_program shellcheck
	for f in setup tests/deps tests/unpack tests/run tests/tally cmd/completion.sh; do
		[ "$(head -n 1 "$DS_ROOT/$f")" = '#!/bin/sh' ]
		shellcheck -s sh -S warning "$DS_ROOT/$f"
	done
}

# A directory with only the named programs, to stand for a bare machine.
bare() {
	local p
	mkdir -p "$BATS_TEST_TMPDIR/bin"
	for p; do
		ln -s "$(command -v "$p")" "$BATS_TEST_TMPDIR/bin/$p"
	done
}

@test "deps prints the exact command and exits 69 where nothing can be installed" {
	bare sh sort
	printf '#!/bin/sh\necho 1000\n' >"$BATS_TEST_TMPDIR/bin/id"
	printf '#!/bin/sh\nexit 0\n' >"$BATS_TEST_TMPDIR/bin/apt-get"
	printf '#!/bin/sh\nexit 100\n' >"$BATS_TEST_TMPDIR/bin/apt-cache"
	chmod 755 "$BATS_TEST_TMPDIR/bin/id" "$BATS_TEST_TMPDIR/bin/apt-get" "$BATS_TEST_TMPDIR/bin/apt-cache"
	run -69 --separate-stderr env PATH="$BATS_TEST_TMPDIR/bin" sh "$DS_ROOT/tests/deps" --install build </dev/null
	# shellcheck disable=SC2154 # set by run
	[[ $stderr == *'apt-get install -y --no-install-recommends'*make* ]]
	[[ $stderr == *pkg-config* ]]
	rm "$BATS_TEST_TMPDIR/bin/apt-get"
	run -69 --separate-stderr env PATH="$BATS_TEST_TMPDIR/bin" sh "$DS_ROOT/tests/deps" --install build </dev/null
	[[ $stderr == *'package manager'* ]]
}

@test "deps installs through sudo where there is one" {
	bare sh sort
	printf '#!/bin/sh\necho 1000\n' >"$BATS_TEST_TMPDIR/bin/id"
	printf '#!/bin/sh\nexit 100\n' >"$BATS_TEST_TMPDIR/bin/apt-cache"
	printf '#!/bin/sh\necho "apt-get $*" >>"%s/calls"\n' "$BATS_TEST_TMPDIR" >"$BATS_TEST_TMPDIR/bin/apt-get"
	printf '#!/bin/sh\n[ "$1" != -n ] || shift\nexec "$@"\n' >"$BATS_TEST_TMPDIR/bin/sudo"
	printf '#!/bin/sh\n' >"$BATS_TEST_TMPDIR/bin/true"
	# by name: what `bare` linked there are the system's programs
	(cd "$BATS_TEST_TMPDIR/bin" && chmod 755 id apt-cache apt-get sudo true)
	run -0 env PATH="$BATS_TEST_TMPDIR/bin" sh "$DS_ROOT/tests/deps" --install build </dev/null
	run cat "$BATS_TEST_TMPDIR/calls"
	assert_line --index 0 --partial 'apt-get update'
	assert_line --index 1 --partial 'make'
}

@test "deps says nothing and does nothing where all is here; an unknown group is refused" {
	run -0 sh "$DS_ROOT/tests/deps" build
	assert_output ''
	run -0 sh "$DS_ROOT/tests/deps" --install build
	assert_output ''
	run -64 sh "$DS_ROOT/tests/deps" nonsense
}

@test "make install puts programs, pages, completion and examples under DESTDIR and PREFIX, uninstall takes them away" {
	local to="$BATS_TEST_TMPDIR/a root" program
	[ -z "$DS_SANITIZE" ] || skip 'once is enough'
	make -s -C "$DS_ROOT" install DESTDIR="$to" PREFIX=/opt/ds BUILD="${DS_BUILD#"$DS_ROOT/"}"
	for program in "$DS_ROOT"/cmd/*.c; do
		program=$(basename "$program" .c)
		[ -x "$to/opt/ds/bin/$program" ]
		[ -f "$to/opt/ds/share/man/man1/$program.1" ]
		[ -f "$to/opt/ds/share/bash-completion/completions/$program" ]
	done
	[ -f "$to/opt/ds/share/man/man5/ds-frame.5" ]
	[ -f "$to/opt/ds/share/man/man7/dsutils.7" ]
	[ -f "$to/opt/ds/share/dsutils/examples/models/tiny-r1/config.json" ]
	run -0 limited env PATH="$to/opt/ds/bin:$PATH" sh "$to/opt/ds/share/dsutils/examples/ask.sh" \
		"$to/opt/ds/share/dsutils/examples/models/tiny-r1" 'What is 348 + 977?'
	assert_output --partial 1325
	make -s -C "$DS_ROOT" uninstall DESTDIR="$to" PREFIX=/opt/ds
	run find "$to" -type f
	assert_output ''
}

@test "a change of a header or of flags builds again what depends on it, and nothing else" {
	[ -z "$DS_SANITIZE" ] || skip 'once is enough'
	local tree="$BATS_TEST_TMPDIR/a tree" n
	mkdir -p "$tree/lib/base" "$tree/cmd"
	cp "$DS_ROOT/Makefile" "$tree"
	echo '#define VALUE 0' >"$tree/lib/base/value.h"
	printf '#include "base/value.h"\nint value(void);\nint value(void) { return VALUE; }\n' >"$tree/lib/base/value.c"
	printf 'int other(void);\nint other(void) { return 0; }\n' >"$tree/lib/base/other.c"
	printf 'int value(void);\nint main(void) { return value(); }\n' >"$tree/cmd/ds-x.c"
	make -s -C "$tree"
	"$tree/build/bin/ds-x"
	run -0 make -C "$tree"
	refute_output --partial ' -o '
	sleep 1.1
	echo '#define VALUE 7' >"$tree/lib/base/value.h"
	run -0 make -C "$tree"
	n=$(grep -c -- ' -c -o ' <<<"$output")
	[ "$n" -eq 1 ]
	run -7 "$tree/build/bin/ds-x"
	run -0 make -C "$tree" CFLAGS=-O1
	n=$(grep -c -- ' -c -o ' <<<"$output")
	[ "$n" -eq 3 ]
	rm "$tree/lib/base/other.c"
	make -s -C "$tree" CFLAGS=-O1
	run -0 ar t "$tree/build/libds.a"
	refute_output --partial other.o
	run -0 make -C "$tree" -n SANITIZE=address,undefined
	assert_output --partial 'build-address-undefined/'
}
