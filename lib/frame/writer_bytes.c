/* A frame writer's bytes on their way out. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mapped.h"
#include "base/mem.h"
#include "frame/writer_impl.h"

/* iov: what was to be written; NULL: out of the queue. */
static int fail(struct frame_writer *w, const struct iovec *iov, size_t n, struct ds_err *err)
{
	int why = errno, lost = 0;

	w->failed = true;
	for (size_t i = 0; why == EFAULT && i < n && !lost; i++)
		lost = mapped_lost(iov[i].iov_base, iov[i].iov_len, &w->error);
	errno = why;
	if (why == EPIPE)
		err_set(&w->error, DS_SIGPIPE, "'%s': the reader has gone", w->name);
	else if (!lost)
		err_errno(&w->error, DS_IO, "cannot write to '%s'", w->name);
	*err = w->error;
	return err->code;
}

static int queue_add(struct frame_writer *w, const void *p, size_t n, struct ds_err *err)
{
	if (w->queued + n > w->queue_cap && w->sent) {
		memmove(w->queue, w->queue + w->sent, w->queued - w->sent);
		w->queued -= w->sent;
		w->sent = 0;
	}
	if (w->queued + n > w->queue_cap) {
		size_t cap = 2 * (w->queued + n);
		uint8_t *q = mem_realloc(w->queue, cap, 1);

		if (!q) { /* half a frame is out: the stream cannot go on */
			w->failed = true;
			err_nomem(&w->error, cap, "frames that wait for a slow reader");
			*err = w->error;
			return err->code;
		}
		w->queue = q;
		w->queue_cap = cap;
	}
	memcpy(w->queue + w->queued, p, n);
	w->queued += n;
	return 0;
}

static void iov_skip(struct iovec **iov, size_t *n, size_t bytes)
{
	while (*n && bytes >= (*iov)->iov_len) {
		bytes -= (*iov)->iov_len;
		++*iov;
		--*n;
	}
	if (*n) {
		(*iov)->iov_base = (uint8_t *)(*iov)->iov_base + bytes;
		(*iov)->iov_len -= bytes;
	}
}

int frame_out(struct frame_writer *w, struct iovec *iov, size_t n, struct ds_err *err)
{
	int rc = frame_writer_flush(w, err);

	iov_skip(&iov, &n, 0);
	while (!rc && n && !frame_writer_queued(w)) {
		ssize_t got = writev(w->fd, iov, n < IOV_MAX ? (int)n : IOV_MAX);

		if (got >= 0)
			iov_skip(&iov, &n, (size_t)got);
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			break;
		else if (errno != EINTR)
			return fail(w, iov, n, err);
	}
	for (size_t i = 0; !rc && i < n; i++)
		rc = queue_add(w, iov[i].iov_base, iov[i].iov_len, err);
	return rc;
}

size_t frame_writer_queued(const struct frame_writer *w)
{
	return w->queued - w->sent;
}

uint64_t frame_writer_taken(const struct frame_writer *w)
{
	return w->bytes - frame_writer_queued(w);
}

int frame_writer_flush(struct frame_writer *w, struct ds_err *err)
{
	if (w->failed) {
		*err = w->error;
		return err->code;
	}
	while (w->sent < w->queued) {
		ssize_t n = write(w->fd, w->queue + w->sent, w->queued - w->sent);

		if (n >= 0)
			w->sent += (size_t)n;
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			return 0;
		else if (errno != EINTR)
			return fail(w, NULL, 0, err);
	}
	w->sent = w->queued = 0;
	if (w->queue_cap > 1 << 20) { /* a burst's memory is not kept */
		free(w->queue);
		w->queue = NULL;
		w->queue_cap = 0;
	}
	return 0;
}

int frame_write_raw(struct frame_writer *w, const void *p, size_t n, struct ds_err *err)
{
	struct iovec iov = { (void *)(uintptr_t)p, n };

	return frame_out(w, &iov, 1, err);
}

/* EAGAIN of a descriptor that blocks is its time-out. */
static int stalled(struct frame_writer *w, const struct iovec *iov, struct ds_err *err)
{
	if (errno != EAGAIN && errno != EWOULDBLOCK)
		return fail(w, iov, iov != NULL, err);
	w->failed = true;
	err_set(&w->error, DS_TEMP, "'%s': the reader takes nothing", w->name);
	*err = w->error;
	return err->code;
}

/* All of iov, with fd (-1: none) beside the first byte. */
static int put_all(struct frame_writer *w, struct iovec *iov, int fd, int flags, struct ds_err *err)
{
	union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = 1 };

	if (fd >= 0) {
		memset(&control, 0, sizeof control);
		m.msg_control = &control;
		m.msg_controllen = sizeof control;
		CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
		CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
		CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof fd);
	}
	while (iov->iov_len) {
		ssize_t n = sendmsg(w->fd, &m, MSG_NOSIGNAL | flags);

		if (n < 0 && errno == ENOTSOCK && fd < 0)
			n = write(w->fd, iov->iov_base, iov->iov_len);
		if (n < 0 && errno != EINTR)
			return stalled(w, iov, err);
		if (n > 0) {
			iov->iov_base = (uint8_t *)iov->iov_base + n;
			iov->iov_len -= (size_t)n;
			m.msg_control = NULL;
			m.msg_controllen = 0;
		}
	}
	return 0;
}

static int put_queue(struct frame_writer *w, struct ds_err *err)
{
	struct iovec iov = { w->queue ? w->queue + w->sent : NULL, frame_writer_queued(w) };
	int rc;

	if (w->failed) {
		*err = w->error;
		return err->code;
	}
	rc = iov.iov_len ? put_all(w, &iov, -1, 0, err) : 0;
	w->sent = w->queued = 0;
	return rc;
}

int frame_out_file(struct frame_writer *w, struct iovec *iov, int fd, uint64_t offset, size_t n, struct ds_err *err)
{
	off_t at = (off_t)offset;
	int rc = put_queue(w, err);

	if (!rc)
		rc = put_all(w, iov, -1, n ? MSG_MORE : 0, err);
	while (!rc && n) {
		ssize_t got = sendfile(w->fd, fd, &at, n);

		if (got > 0) {
			n -= (size_t)got;
		} else if (got == 0) { /* half a frame is out: the stream cannot go on */
			w->failed = true;
			rc = err_set(&w->error, DS_DATA, "a file ends %zu bytes before what '%s' was to get",
				n, w->name);
			*err = w->error;
		} else if (errno != EINTR) {
			rc = stalled(w, NULL, err);
		}
	}
	return rc;
}

int frame_out_fd(struct frame_writer *w, struct iovec *iov, int fd, struct ds_err *err)
{
	int rc = put_queue(w, err);

	return rc ? rc : put_all(w, iov, fd, 0, err);
}
