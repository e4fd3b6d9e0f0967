#include "base/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/sync.h"
#include "base/time.h"

enum { KEEP = 64 << 10, FLUSH_NS = 250000000 };

struct trace {
	int fd, pid;
	int error;         /* errno of the write that failed */
	bool told;
	int64_t flushed;
	struct buf b;      /* whole lines */
	char path[1];
};

/* ---- the file ---- */

static void put(struct trace *t)
{
	size_t at = 0;

	if (t->b.nomem && !t->error)
		t->error = ENOMEM;
	while (at < t->b.len && !t->error) {
		ssize_t n = write(t->fd, t->b.p + at, t->b.len - at);

		if (n > 0)
			at += (size_t)n;
		else if (n == 0 || errno != EINTR)
			t->error = n ? errno : EIO;
	}
	t->b.len = 0;
	t->b.nomem = false;
}

void trace_flush(struct trace *t, int64_t now)
{
	if (!t || (now && now - t->flushed < FLUSH_NS))
		return;
	t->flushed = now;
	put(t);
}

const char *trace_failed(struct trace *t)
{
	if (!t || !t->error || t->told)
		return NULL;
	t->told = true;
	return strerror(t->error);
}

/* Ends a line. */
static void line(struct trace *t, const char *end)
{
	buf_str(&t->b, end);
	if (t->b.len >= KEEP || t->b.nomem)
		put(t);
}

static int open_file(const char *path, bool force, int *fd, struct ds_err *err)
{
	struct stat sb;

	*fd = open(path, O_WRONLY | O_CREAT | (force ? O_TRUNC : O_EXCL) | O_CLOEXEC, 0666);
	if (*fd < 0 && errno == EEXIST) {
		if (stat(path, &sb) == 0 && S_ISREG(sb.st_mode))
			return err_set(err, DS_USAGE, "--trace: '%s' is there; --force replaces it", path);
		*fd = open(path, O_WRONLY | O_CLOEXEC);
	}
	return *fd < 0 ? err_errno(err, DS_IO, "cannot create the trace '%s'", path) : 0;
}

int trace_open(struct trace **out, const char *path, bool force, int pid, const char *process, struct ds_err *err)
{
	struct trace *t = mem_calloc(1, sizeof(*t) + strlen(path));
	int rc;

	if (!t)
		return err_nomem(err, sizeof(*t), "a trace");
	strcpy(t->path, path);
	t->pid = pid;
	rc = open_file(path, force, &t->fd, err);
	if (rc) {
		free(t);
		return rc;
	}
	buf_printf(&t->b, "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,"
		"\"args\":{\"name\":\"%s\"}},\n", pid, process);
	buf_printf(&t->b, "{\"name\":\"clocks\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{\"mono_ns\":%lld,"
		"\"wall_ns\":%lld,\"os_pid\":%ld}},\n", pid, (long long)time_mono_ns(), (long long)time_wall_ns(),
		(long)getpid());
	put(t);
	*out = t;
	return 0;
}

int trace_close(struct trace *t, struct ds_err *err)
{
	int rc;

	if (!t)
		return 0;
	buf_printf(&t->b, "{\"name\":\"end\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{\"mono_ns\":%lld}}\n]\n",
		t->pid, (long long)time_mono_ns());
	put(t);
	rc = t->error ? 0 : sync_fd(t->fd, t->path, err);
	if (close(t->fd) && !t->error && !rc)
		t->error = errno;
	if (t->error)
		rc = err_set(err, DS_IO, "cannot write the trace '%s': %s", t->path, strerror(t->error));
	buf_free(&t->b);
	free(t);
	return rc;
}

/* ---- events ---- */

/* Microseconds, with the nanoseconds behind the point. */
static void stamp(struct buf *b, const char *key, int64_t ns)
{
	buf_printf(b, ",\"%s\":%lld.%03d", key, (long long)(ns / 1000), (int)(ns % 1000));
}

__attribute__((format(printf, 2, 0))) static void args(struct buf *b, const char *fmt, va_list ap)
{
	char text[400];

	if (!fmt)
		return;
	vsnprintf(text, sizeof(text), fmt, ap);
	buf_printf(b, ",\"args\":{%s}", text);
}

static bool begin(struct trace *t, char phase, int tid)
{
	if (!t || t->error)
		return false;
	buf_printf(&t->b, "{\"ph\":\"%c\",\"pid\":%d,\"tid\":%d", phase, t->pid, tid);
	return true;
}

void trace_lane(struct trace *t, int tid, const char *name)
{
	if (!begin(t, 'M', tid))
		return;
	buf_printf(&t->b, ",\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}},\n", name);
	begin(t, 'M', tid);
	buf_printf(&t->b, ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}", tid);
	line(t, "},\n");
}

void trace_span(struct trace *t, int tid, const char *name, int64_t from, int64_t to, const char *fmt, ...)
{
	va_list ap;

	if (!begin(t, 'X', tid))
		return;
	buf_printf(&t->b, ",\"name\":\"%s\"", name);
	stamp(&t->b, "ts", from);
	stamp(&t->b, "dur", to - from);
	va_start(ap, fmt);
	args(&t->b, fmt, ap);
	va_end(ap);
	line(t, "},\n");
}

void trace_counter(struct trace *t, const char *name, int64_t when, const char *fmt, ...)
{
	va_list ap;

	if (!begin(t, 'C', 0))
		return;
	buf_printf(&t->b, ",\"name\":\"%s\"", name);
	stamp(&t->b, "ts", when);
	va_start(ap, fmt);
	args(&t->b, fmt, ap);
	va_end(ap);
	line(t, "},\n");
}

void trace_async(struct trace *t, char phase, const char *category, uint64_t id, const char *name, int64_t when,
	const char *fmt, ...)
{
	struct jw w;
	va_list ap;

	if (!begin(t, phase, 0))
		return;
	buf_printf(&t->b, ",\"cat\":\"%s\",\"id\":\"0x%llx\",\"name\":", category, (unsigned long long)id);
	jw_init(&w, &t->b);
	jw_str(&w, name);
	stamp(&t->b, "ts", when);
	va_start(ap, fmt);
	args(&t->b, fmt, ap);
	va_end(ap);
	line(t, "},\n");
}
