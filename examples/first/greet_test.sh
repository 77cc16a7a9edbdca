#!/bin/sh
# Tests of greet.sh.
set -eu
found=$(sh greet.sh delta)
wanted="hello, delta"
if [ "$found" != "$wanted" ]; then
    echo "greet.sh said '$found', wanted '$wanted'" >&2
    exit 1
fi
echo "greet.sh greets"
