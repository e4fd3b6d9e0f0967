# What every program has in common: its option table, --help, its page and its version agree; bad usage is one line and 64.
load helper

setup() {
	PROGRAMS=
	for c in "$DS_ROOT"/cmd/*.c; do
		PROGRAMS="$PROGRAMS $(basename "$c" .c)"
	done
}

# each FUNCTION: calls it with every program, fails at the end if it failed for any.
each() {
	local p bad=0
	for p in $PROGRAMS; do
		"$1" "$p" || bad=1
	done
	return "$bad"
}

complain() {
	echo "$*" >&2
	return 1
}

@test "there are programs, and each is built" {
	[ -n "$PROGRAMS" ]
	built() { [ -x "$DS_BUILD/bin/$1" ] || complain "$1 is not in $DS_BUILD/bin"; }
	each built
}

@test "--help is on stdout, exits 0, is short and ends with an example" {
	check() {
		local out
		out=$("$1" --help 2>&1) || complain "$1 --help: exit $?" || return 1
		[ "$out" = "$("$1" -h 2>/dev/null)" ] || complain "$1: -h and --help differ" || return 1
		[ "$(wc -l <<<"$out")" -le 60 ] || complain "$1 --help is long" || return 1
		[[ $(head -n 1 <<<"$out") == "usage: $1 "* ]] || complain "$1 --help does not begin with its usage" || return 1
		[[ $(tail -n 1 <<<"$out") == *"$1"* ]] || complain "$1 --help does not end with an example" || return 1
	}
	each check
}

@test "--version prints the name and the version; -v adds how it was built" {
	local version
	version=$(sed -n 's/.*DS_VERSION "\(.*\)"/\1/p' "$DS_ROOT/lib/base/version.h")
	[ -n "$version" ]
	check() {
		local out more
		out=$("$1" --version) || complain "$1 --version: exit $?" || return 1
		[[ $out == *"$1"*"$version"* ]] || complain "$1 --version: '$out'" || return 1
		[ "$out" = "$("$1" -V)" ] || complain "$1: -V and --version differ" || return 1
		more=$("$1" -V -v) || complain "$1 -V -v: exit $?" || return 1
		[ "$(wc -l <<<"$more")" -gt 1 ] || complain "$1 -V -v adds nothing" || return 1
	}
	each check
}

# page_options PAGE: the options that a manual page describes, one a line, long ones without their dashes.
page_options() {
	awk '/^\.It Fl / {
		gsub(/\\/, "")
		option = 1
		for (i = 3; i <= NF; i++) {
			if ($i == "Ar" || $i == "Cm") option = 0
			if ($i == "Fl" || $i == ",") { option = 1; continue }
			if (!option) continue
			sub(/^-+/, "", $i)
			print $i
		}
	}' "$1"
}

@test "every option of the table is in --help and in the manual page, and the page has no other" {
	check() {
		local name letter help page=$DS_ROOT/man/$1.1 bad=0 out described table
		[ -f "$page" ] || complain "no page of $1" || return 1
		out=$("$1" --help)
		described=$(page_options "$page")
		while IFS=$'\x1f' read -r name letter _ _ help; do # not a tab: read folds tabs, and with them empty fields
			[[ $out == *"--$name"* ]] || complain "$1 --help lacks --$name" || bad=1
			[[ $out == *"$help"* ]] || complain "$1 --help lacks the text of --$name" || bad=1
			for name in "$name" "$letter"; do
				[ -z "$name" ] || grep -qxF -- "$name" <<<"$described" || complain "$page lacks '$name'" || bad=1
			done
		done < <("$1" --options | tr '\t' '\037')
		table=$("$1" --options | cut -f 1-2 | tr '\t' '\n')
		for name in $described; do
			grep -qxF -- "$name" <<<"$table" || complain "$page describes '$name', which $1 does not have" || bad=1
		done
		return "$bad"
	}
	each check
}

@test "no option shows a default that only means that it is not given" {
	check() {
		"$1" --options | awk -F '\t' '$4 == "-1" && $1 != "seed" { print; bad = 1 } END { exit bad }' ||
			complain "$1 shows such a default"
	}
	each check # a seed of -1 is one that people write
	refused 64 '--values' ds-frame dump -n -1
	refused 64 '--tol' ds-frame diff --tol -1 a b
	refused 64 '--ready-fd' ds-decode --ready-fd -1
}

@test "an unknown option is one line and exit status 64" {
	check() { refused 64 'no-such-option' "$1" --no-such-option </dev/null; }
	each check
	check() { refused 64 '' "$1" -@ </dev/null; }
	each check
}

@test "an option without its argument is refused with 64" {
	check() {
		local name
		name=$("$1" --options | awk -F '\t' '$3 != "" { print $1; exit }')
		[ -n "$name" ] || return 0
		refused 64 "$name" "$1" "--$name" </dev/null
	}
	each check
}

@test "numbers are parsed whole: 3x, an empty text and a number out of range are refused with 64" {
	check() {
		local name
		name=$("$1" --options | awk -F '\t' '$1 == "threads" || $1 == "ready-fd" { print $1; exit }')
		[ -n "$name" ] || return 0
		refused 64 "$name" "$1" "--$name" 3x </dev/null && refused 64 "$name" "$1" "--$name" '' </dev/null &&
			refused 64 "$name" "$1" "--$name" 99999999999999999999 </dev/null
	}
	each check
}

@test "--help, --version and --options notice a full disk" {
	check() {
		local option
		for option in --help --version --options; do
			refused 74 '' sh -c 'exec "$@" >/dev/full' - "$1" "$option" || return 1
		done
	}
	each check
}

@test "an environment variable gives the default of a common option, and a bad one is refused by name" {
	check() {
		"$1" --options | cut -f 1 | has -x threads || return 0
		DS_THREADS=nonsense refused 64 'DS_THREADS' "$1" </dev/null || DS_THREADS=nonsense refused 78 'DS_THREADS' "$1" </dev/null
	}
	each check
}

@test "every page is formatted without a warning" {
	need_program mandoc
	mandoc -T lint -W warning "$DS_ROOT"/man/*.[1-8]
}

@test "bash completes options, sub-commands and arguments" {
	bash "$DS_ROOT/cmd/completion.sh" "$DS_BUILD/bin/ds-token" "$DS_BUILD/bin/ds-frame" >"$BATS_TEST_TMPDIR/completion.bash"
	complete_words() {
		# shellcheck disable=SC2034 # bash's own names
		bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dsutils "$1" "${@: -1}" "${@: -2:1}"; printf "%s\n" "${COMPREPLY[@]}"' \
			- "$BATS_TEST_TMPDIR/completion.bash" "$@"
	}
	run complete_words ds-token --mod
	assert_output '--model'
	run complete_words ds-token --log-format j
	assert_output 'json'
	run complete_words ds-frame du
	assert_output 'dump'
	run complete_words ds-token -m DIR --chat en # a sub-command may stand behind options
	assert_output 'encode'
	run complete_words ds-token --chat en
	assert_output 'encode'
	cd "$BATS_TEST_TMPDIR" && touch encoded
	run complete_words ds-token encode --chat enco # there is one already
	assert_output 'encoded'
}
