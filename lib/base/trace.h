/*
 * A trace for Perfetto (ui.perfetto.dev) and chrome://tracing: a JSON array of Chrome trace events, one a line.
 *
 * The file is written in place as the program runs, whole lines at a time, so that the trace of a program that was
 * killed can be opened, too: both viewers take an array without its end.  Times are those of time_mono_ns, which all
 * processes of a machine share; the process' metadata hold the wall clock beside it.  pid is the rank, tid the lane.
 *
 * Memory is bounded: lines are kept up to 64 KiB, and no longer than trace_flush says.  Once a write failed nothing
 * more is written, and trace_close says so.  Not thread-safe.
 */
#ifndef DS_BASE_TRACE_H
#define DS_BASE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct trace;

/* force: replace a file that is there (other kinds, such as /dev/stdout or a FIFO, need none).  DS_IO, DS_USAGE,
 * DS_OS. */
int trace_open(struct trace **t, const char *path, bool force, int pid, const char *process, struct ds_err *err);
/* Ends the array and frees t (NULL: nothing happens), also where it fails: DS_IO. */
int trace_close(struct trace *t, struct ds_err *err);
/* Writes what is kept where the last write was more than a quarter of a second ago, or where now is 0. */
void trace_flush(struct trace *t, int64_t now);
/* The reason of a failed write, once; else NULL. */
const char *trace_failed(struct trace *t);

void trace_lane(struct trace *t, int tid, const char *name);

/* fmt and what follows make the members of "args", such as "\"rows\":%zu"; NULL: none.  name needs no escapes. */
void trace_span(struct trace *t, int tid, const char *name, int64_t begin, int64_t end, const char *fmt, ...)
	__attribute__((format(printf, 6, 7)));
void trace_counter(struct trace *t, const char *name, int64_t when, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* A span that is on no lane, begun ('b') and ended ('e') under an id; name may be any text. */
void trace_async(struct trace *t, char phase, const char *category, uint64_t id, const char *name, int64_t when,
	const char *fmt, ...) __attribute__((format(printf, 7, 8)));

#endif
