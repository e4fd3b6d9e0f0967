#include "serve/beside.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "net/addr.h"

#define CONNECT_NS ((int64_t)15000000000) /* programs start in any order */

static bool is_address(const char *to)
{
	return strncmp(to, "unix:", 5) == 0 || strncmp(to, "tcp:", 4) == 0 || strncmp(to, "fd:", 3) == 0;
}

static const char *waiting_option; /* while an address is connected to, which has no place for it */

static void tell_waiting(const char *to)
{
	log_msg(LOG_WARN, "waiting for '%s' (%s)", to, waiting_option);
}

static void tell_socket(const struct addr *a)
{
	tell_waiting(a->text);
}

static int open_socket(struct beside *b, const struct beside_options *o, struct ds_err *err)
{
	struct addr a;
	int rc = addr_parse(o->to, &a, err);

	if (!rc)
		rc = addr_connect_told(&a, CONNECT_NS, tell_socket, &b->socket, err);
	return rc ? err_prefix(err, "%s", o->option) : 0;
}

/* A named pipe is opened when somebody reads it, and that takes as long as it takes. */
static int open_file(struct beside *b, const struct beside_options *o, struct ds_err *err)
{
	enum { TRIES = 100 };
	struct stat sb;
	bool pipe = stat(o->to, &sb) == 0 && S_ISFIFO(sb.st_mode);
	int held = -1, rc;

	for (int i = 0; pipe && held < 0 && i <= TRIES; i++) {
		held = open(o->to, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
		if (held < 0 && errno != ENXIO)
			break; /* outfile_open says why */
		if (held < 0 && i == TRIES)
			tell_waiting(o->to);
		else if (held < 0)
			nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
	rc = outfile_open(&b->file, o->to, o->force, false, err);
	if (held >= 0) /* the reader was not to see an end in between */
		close(held);
	return rc;
}

static int fd_of(const struct beside *b)
{
	return b->socket >= 0 ? b->socket : b->file.fd;
}

static int open_output(struct beside *b, const struct beside_options *o, struct ds_err *err)
{
	int rc;

	snprintf(b->name, sizeof(b->name), "%s", strcmp(o->to, "-") == 0 ? "<stdout>" : o->to);
	waiting_option = o->option;
	if (is_address(o->to)) {
		rc = open_socket(b, o, err);
	} else if (strcmp(o->to, "-") == 0 && o->stdout_taken) {
		rc = err_set(err, DS_USAGE, "%s '-': standard output is for the answers; give them -o FILE", o->option);
	} else {
		rc = open_file(b, o, err);
	}
	if (rc)
		return rc;
	if (fd_of(b) == STDOUT_FILENO) /* that one is not ours alone */
		fd_nonblock_apart(fd_of(b));
	else
		fd_nonblock(fd_of(b), true);
	return frame_writer_new(&b->w, fd_of(b), b->name, err);
}

static int say_hello(struct beside *b, const struct hello *hello, struct ds_err *err)
{
	struct hello h = *hello;

	snprintf(h.role, sizeof(h.role), "%s", b->role);
	h.kv.type = DT_NONE;
	hello_put(b->meta, &h);
	return frame_write(b->w, FRAME_HELLO, 0, 0, b->meta, NULL, 0, false, err);
}

int beside_open(struct beside *b, const struct beside_options *o, const struct hello *hello, struct ds_err *err)
{
	int rc;

	*b = (struct beside){ .socket = -1, .file = { .fd = -1 }, .role = o->role, .patience_ns = o->patience_ns,
		.meta = meta_new() };
	if (!b->meta)
		return err_nomem(err, sizeof(*b), "frame meta");
	rc = open_output(b, o, err);
	if (!rc)
		rc = say_hello(b, hello, err);
	if (rc)
		beside_drop(b);
	return rc;
}

void beside_drop(struct beside *b)
{
	frame_writer_free(b->w);
	if (b->socket >= 0)
		close(b->socket);
	outfile_discard(&b->file);
	meta_free(b->meta);
	b->w = NULL;
	b->meta = NULL;
	b->socket = -1;
}

/* A reader that goes is not what a reader of the answers would be: it is told. */
void beside_note(struct beside *b, int rc)
{
	if (rc == DS_SIGPIPE)
		err_set(&b->error, DS_IO, "cannot write to '%s': the reader of the %s has gone", b->name, b->role);
}

void beside_flush(struct beside *b)
{
	struct pollfd p = { .fd = fd_of(b), .events = POLLOUT };
	int64_t ms = b->patience_ns / 1000000;

	while (!b->error.code && frame_writer_queued(b->w)) {
		int n = poll(&p, 1, ms < 3600000 ? (int)ms : 3600000);

		if (n == 0)
			err_set(&b->error, DS_IO, "cannot write to '%s': the reader of the %s took nothing for %g s",
				b->name, b->role, (double)b->patience_ns / 1e9);
		else if (n > 0 || errno != EINTR)
			beside_note(b, frame_writer_flush(b->w, &b->error));
	}
}

int beside_error(const struct beside *b, struct ds_err *err)
{
	if (b->error.code)
		*err = b->error;
	return b->error.code;
}

int beside_close(struct beside *b, struct ds_err *err)
{
	int rc;

	if (!b->error.code)
		beside_note(b, frame_write_end(b->w, &b->error));
	beside_flush(b);
	rc = beside_error(b, err);
	if (!rc)
		rc = outfile_commit(&b->file, err);
	beside_drop(b);
	return rc;
}
