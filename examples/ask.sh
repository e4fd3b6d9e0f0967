#!/bin/sh
# ask.sh MODEL QUESTION: one question through the whole pipeline.  MODEL is the directory of a checkpoint.
set -eu
if [ $# -ne 2 ]; then
	echo "usage: ask.sh MODEL 'QUESTION'" >&2
	exit 64
fi
# Each part may run elsewhere, read a file, or write one: what passes between them is the same bytes everywhere.
printf '%s\n' "$2" | ds-token -m "$1" encode --chat | ds-prefill -m "$1" | ds-decode -m "$1" | ds-token -m "$1" decode
