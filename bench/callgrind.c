/* callgrind.c - what a program under valgrind's callgrind asks of it; elsewhere nothing happens. */
#include <valgrind/callgrind.h>

int is_watched(void) { return RUNNING_ON_VALGRIND; }
void start(void) { CALLGRIND_START_INSTRUMENTATION; }
void toggle(void) { CALLGRIND_TOGGLE_COLLECT; }
void dump(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
