#!/bin/sh
# completion.sh PROGRAM...: prints the bash completion of the programs, made from their own option tables (--options).
set -eu
cat <<'END'
# bash completion for dsutils, made from the programs' option tables
_dsutils()
{
	local cur=$2 prev=$3 words= arg= word
	COMPREPLY=()
	_dsutils_table "${1##*/}"
	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
		return
	fi
	if [[ $prev == -* ]]; then
		_dsutils_arg "${1##*/}" "$prev"
	fi
	if [[ -z $arg ]]; then
		arg=$commands
		for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
			[[ "|$commands|" == *"|$word|"* ]] && arg=
		done
	fi
	case $arg in
	DIR | MODEL) mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
	*[A-Z]*'|'*) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
	*'|'*) mapfile -t COMPREPLY < <(compgen -W "${arg//|/ }" -- "$cur") ;;
	FILE | '') mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
	esac
}
END

echo '_dsutils_table()'
echo '{'
echo '	commands='
echo "	case \$1 in"
for program; do
	printf '\t%s)\n' "${program##*/}"
	"$program" --options | awk -F '\t' '
		{ words = words " --" $1; if ($2 != "") words = words " -" $2 }
		END { printf "\t\twords=\"%s\"\n", substr(words, 2) }'
	# Sub-commands are the bare words of the usage line, up to the first redirection.
	"$program" --help | awk '
		NR > 1 { exit }
		{
			sub(/[<>].*/, "")
			gsub(/[|]/, " ")
			for (i = 3; i <= NF; i++)
				if ($i ~ /^[a-z]+$/ && $i != "or" && !index(words, $i))
					words = words "|" $i
			if (words != "")
				printf "\t\tcommands=\"%s\"\n", substr(words, 2)
		}'
	printf '\t\t;;\n'
done
echo '	esac'
echo '}'

echo '_dsutils_arg()'
echo '{'
echo "	case \$1\\ \$2 in"
for program; do
	"$program" --options | awk -F '\t' -v p="${program##*/}" '
		$3 != "" {
			printf "\t%s\\ --%s", p, $1
			if ($2 != "")
				printf " | %s\\ -%s", p, $2
			printf ") arg=\"%s\" ;;\n", $3
		}'
done
echo "	*) arg= ;;"
echo '	esac'
echo '}'
for program; do
	echo "complete -F _dsutils ${program##*/}"
done
