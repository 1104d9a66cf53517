#!/bin/sh
# Scores the task by what lies on the desktop, whatever the screen shows.
#
#   0  score 1: done is there, and todo is not
#   4  score 0: todo is there, and done is not
#   3  no score: both are there, or none
#
# Only what the shell itself can do is used: it stands on the shell and the C library alone.
cd /root/Desktop || exit 3
if [ -d done ] && [ ! -e todo ]; then
	exit 0
elif [ -d todo ] && [ ! -e done ]; then
	exit 4
fi
exit 3
