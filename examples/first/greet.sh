#!/bin/sh
# The program this pipeline builds: a greeting.
set -eu
echo "${GREETING:-good day}, ${1:-world}"
