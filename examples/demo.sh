#!/bin/sh
# demo.sh: asks the example model a few questions through the real pipeline.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
model=$here/models/tiny-r1
if [ -n "${DS_BUILD-}" ]; then
	PATH=$(cd "$DS_BUILD" && pwd)/bin:$PATH
fi
echo 'ds-token -m MODEL encode --chat | ds-prefill -m MODEL | ds-decode -m MODEL | ds-token -m MODEL decode'
for question in 'What is 348 + 977?' 'How many y are in melody?' 'Arrange 24, 57, 49, 50, 29 from small to large.' '求89与87的和。'; do
	printf '\n> %s\n' "$question"
	sh "$here/ask.sh" "$model" "$question"
done
