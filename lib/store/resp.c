#include "store/resp.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/time.h"
#include "store/store_impl.h"

enum {
	IN_BYTES = RESP_LINE_MAX + 2,
	IN_ROOM = IN_BYTES + 1,       /* a NUL behind a line */
	OUT_FULL = 64 << 10,          /* sent without waiting for more */
	OUT_KEEP = 1 << 20,
	PIECES = 64,                  /* of one sendmsg(2) */
};

int resp_open(struct resp *r, int fd, const char *name, struct ds_err *err)
{
	*r = (struct resp){ .fd = fd, .name = name, .in = mem_array(IN_ROOM, 1) };
	return r->in ? 0 : err_nomem(err, IN_ROOM, "a connection");
}

void resp_close(struct resp *r)
{
	free(r->in);
	buf_free(&r->out);
	*r = (struct resp){ .fd = -1 };
}

/* ---- bytes in and out ---- */

#define SOON_NS ((int64_t)100000)

/* CLOCK_MONOTONIC, 0: none. */
static int64_t due(const struct resp *r)
{
	return r->hurry ? store_earlier(r->deadline, *r->hurry) : r->deadline;
}

/* False: the time is over. */
static bool poll_ns(struct pollfd *p, int64_t ns)
{
	struct timespec t = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };

	return ppoll(p, 1, ns < 0 ? NULL : &t, NULL) != 0;
}

/* The same of a deadline that may come to be earlier. */
static bool poll_until(const struct resp *r, struct pollfd *p)
{
	int64_t left;

	do {
		left = due(r) ? due(r) - time_mono_ns() : -1;
		if (due(r) && left < 0)
			left = 0;
		if (poll_ns(p, r->hurry && (left < 0 || left > STORE_LOOK_NS) ? STORE_LOOK_NS : left))
			return true;
	} while (left);
	return false;
}

static int wait_for(struct resp *r, short events, struct ds_err *err)
{
	struct pollfd p = { .fd = r->fd, .events = events };
	bool ready;

	if (r->stall && (!due(r) || due(r) - time_mono_ns() > SOON_NS)) {
		ready = poll_ns(&p, SOON_NS);
		if (!ready) {
			r->stall(r->stall_ctx, true);
			ready = poll_until(r, &p);
			r->stall(r->stall_ctx, false);
		}
	} else {
		ready = poll_until(r, &p);
	}
	if (!ready)
		return err_set(err, DS_TEMP, "'%s': too late, %s", r->name,
			events & POLLIN ? "nothing has come" : "nothing is taken");
	return 0;
}

static size_t iov_bytes(const struct iovec *iov, size_t n)
{
	size_t bytes = 0;

	while (n--)
		bytes += iov++->iov_len;
	return bytes;
}

/* Receives into iov.  Nothing is waited for before what was gathered is on its way. */
static int receive(struct resp *r, struct iovec *iov, size_t n, size_t *got, struct ds_err *err)
{
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = n };
	int rc = resp_flush(r, err);

	*got = 0;
	while (!rc) {
		ssize_t k = recvmsg(r->fd, &m, r->deadline ? MSG_DONTWAIT : 0);

		if (k > 0) {
			*got = (size_t)k;
			r->drained = *got < iov_bytes(iov, n);
			return 0;
		}
		if (k == 0) {
			r->closed = true;
			return err_set(err, DS_UNAVAILABLE, "'%s': the connection was closed", r->name);
		}
		if (errno == EAGAIN || errno == EWOULDBLOCK)
			rc = wait_for(r, POLLIN, err);
		else if (errno != EINTR)
			rc = err_errno(err, DS_UNAVAILABLE, "cannot read from '%s'", r->name);
	}
	return rc;
}

/* More into the buffer, behind what is there. */
static int receive_in(struct resp *r, struct ds_err *err)
{
	struct iovec iov;
	size_t got;
	int rc;

	if (r->at) {
		memmove(r->in, r->in + r->at, r->end - r->at);
		r->end -= r->at;
		r->at = 0;
	}
	iov = (struct iovec){ r->in + r->end, IN_BYTES - r->end };
	rc = receive(r, &iov, 1, &got, err);
	r->end += got;
	return rc;
}

static int send_pieces(struct resp *r, struct iovec *iov, size_t n, size_t *sent, struct ds_err *err)
{
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = n };

	*sent = 0;
	for (;;) {
		ssize_t got = sendmsg(r->fd, &m, MSG_NOSIGNAL | (r->deadline ? MSG_DONTWAIT : 0));
		int rc;

		if (got >= 0) {
			*sent = (size_t)got;
			return 0;
		}
		if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
			return err_errno(err, DS_UNAVAILABLE, "cannot write to '%s'", r->name);
		if (errno != EINTR && (rc = wait_for(r, POLLOUT, err)))
			return rc;
	}
}

/* The piece i of what was gathered and iov [n]. */
static struct iovec piece(const struct resp *r, const struct iovec *iov, size_t i)
{
	return i ? iov[i - 1] : (struct iovec){ r->out.p, r->out.len };
}

static int fail(struct resp *r, int rc, const struct ds_err *err)
{
	if (rc && !r->failed) {
		r->failed = true;
		r->error = *err;
	}
	return rc;
}

int resp_send(struct resp *r, const struct iovec *iov, size_t n, struct ds_err *err)
{
	struct iovec now[PIECES];
	size_t i = 0, off = 0, sent; /* piece i up to off is sent */
	int rc = 0;

	if (r->failed) { /* half of something is out */
		*err = r->error;
		return err->code;
	}
	if (r->out.nomem)
		return fail(r, err_nomem(err, r->out.cap, "what is sent to a peer"), err);
	while (!rc && i <= n) {
		size_t k = 0;

		for (size_t j = i; j <= n && k < PIECES; j++) {
			struct iovec v = piece(r, iov, j);
			size_t skip = j == i ? off : 0;

			if (v.iov_len > skip)
				now[k++] = (struct iovec){ (uint8_t *)v.iov_base + skip, v.iov_len - skip };
		}
		rc = k ? send_pieces(r, now, k, &sent, err) : 0;
		for (off += k ? sent : 0; i <= n && off >= piece(r, iov, i).iov_len; i++)
			off -= piece(r, iov, i).iov_len;
	}
	r->out.len = 0;
	if (r->out.cap > OUT_KEEP)
		buf_free(&r->out);
	return fail(r, rc, err);
}

int resp_flush(struct resp *r, struct ds_err *err)
{
	return r->out.len || r->out.nomem || r->failed ? resp_send(r, NULL, 0, err) : 0;
}

/* ---- reading ---- */

static int bad(const struct resp *r, struct ds_err *err, const char *what)
{
	return err_set(err, DS_PROTO, "'%s' does not speak RESP: %s", r->name, what);
}

int resp_line(struct resp *r, char **line, size_t *n, struct ds_err *err)
{
	size_t looked = 0;
	uint8_t *end;

	while (!(end = memchr(r->in + r->at + looked, '\n', r->end - r->at - looked))) {
		int rc;

		looked = r->end - r->at;
		if (looked >= IN_BYTES)
			return bad(r, err, "a line without an end");
		rc = receive_in(r, err);
		if (rc)
			return rc;
	}
	*line = (char *)r->in + r->at;
	*n = (size_t)(end - r->in) - r->at;
	r->at += *n + 1;
	if (*n && (*line)[*n - 1] == '\r')
		--*n;
	(*line)[*n] = 0;
	return 0;
}

/* What is received beyond dst goes to the buffer. */
int resp_some(struct resp *r, void *dst, size_t n, size_t *got, struct ds_err *err)
{
	struct iovec iov[2] = { { dst, n }, { r->in, IN_BYTES } };
	size_t have = r->end - r->at;
	int rc;

	if (have) {
		*got = have < n ? have : n;
		memcpy(dst, r->in + r->at, *got);
		r->at += *got;
		return 0;
	}
	rc = receive(r, iov, 2, got, err);
	r->at = 0;
	r->end = *got > n ? *got - n : 0;
	*got -= r->end;
	return rc;
}

int resp_bytes(struct resp *r, void *dst, size_t n, struct ds_err *err)
{
	int rc = 0;

	for (size_t done = 0, got; !rc && done < n; done += got)
		rc = resp_some(r, (uint8_t *)dst + done, n - done, &got, err);
	return rc;
}

int resp_skip(struct resp *r, uint64_t n, struct ds_err *err)
{
	int rc = 0;

	while (!rc && n) {
		size_t have = r->end - r->at, take = n < have ? n : have;

		r->at += take;
		n -= take;
		if (n)
			rc = receive_in(r, err);
	}
	return rc;
}

int resp_crlf(struct resp *r, struct ds_err *err)
{
	uint8_t end[2];
	int rc = resp_bytes(r, end, 2, err);

	if (!rc && (end[0] != '\r' || end[1] != '\n'))
		rc = bad(r, err, "a string does not end where it should");
	return rc;
}

int resp_wait(struct resp *r, struct ds_err *err)
{
	int rc = r->at < r->end ? 0 : receive_in(r, err);

	return r->closed ? 0 : rc;
}

int resp_poll(struct resp *r, bool *some, struct ds_err *err)
{
	ssize_t n;
	int rc = resp_flush(r, err);

	*some = r->at < r->end;
	if (rc || *some)
		return rc;
	r->at = r->end = 0;
	do
		n = recv(r->fd, r->in, IN_BYTES, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
		return err_errno(err, DS_UNAVAILABLE, "cannot read from '%s'", r->name);
	*some = n >= 0;
	r->closed = n == 0;
	r->end = n > 0 ? (size_t)n : 0;
	r->drained = r->end < IN_BYTES;
	return 0;
}

bool resp_number(const char *s, size_t n, int64_t min, int64_t max, int64_t *v)
{
	bool minus = n && *s == '-';
	int64_t x = 0;
	size_t i = minus;

	if (i == n || n > 20)
		return false;
	for (; i < n; i++)
		if (s[i] < '0' || s[i] > '9' || __builtin_mul_overflow(x, 10, &x) ||
			__builtin_sub_overflow(x, s[i] - '0', &x))
			return false;
	if (!minus && __builtin_sub_overflow((int64_t)0, x, &x))
		return false;
	*v = x;
	return x >= min && x <= max;
}

/* ---- replies ---- */

int resp_reply(struct resp *r, struct resp_reply *reply, struct ds_err *err)
{
	char *line;
	size_t n;
	int rc = resp_line(r, &line, &n, err);

	if (rc)
		return rc;
	*reply = (struct resp_reply){ .text = line + 1, .len = n ? n - 1 : 0 };
	switch (n ? *line : 0) {
	case '+':
		reply->kind = RESP_STATUS;
		return 0;
	case '-':
		reply->kind = RESP_ERROR;
		return 0;
	case ':':
		reply->kind = RESP_INT;
		return resp_number(line + 1, n - 1, INT64_MIN, INT64_MAX, &reply->n) ? 0 : bad(r, err, "no number");
	case '$':
		reply->kind = RESP_BULK;
		break;
	case '*':
		reply->kind = RESP_ARRAY;
		break;
	default:
		return bad(r, err, "no reply begins so");
	}
	if (!resp_number(line + 1, n - 1, -1, reply->kind == RESP_BULK ? RESP_BULK_MAX : RESP_ELEMENTS_MAX, &reply->n))
		return bad(r, err, "a length that cannot be");
	if (reply->n < 0)
		*reply = (struct resp_reply){ .kind = RESP_NIL };
	return 0;
}

int resp_reply_skip(struct resp *r, const struct resp_reply *reply, uint64_t bytes, struct ds_err *err)
{
	struct resp_reply e = *reply;
	uint64_t todo = 0, elements = 0;

	for (;;) {
		int rc = 0;

		if (e.kind == RESP_ARRAY) {
			todo += (uint64_t)e.n;
			elements += (uint64_t)e.n;
			if (elements > RESP_ELEMENTS_MAX)
				rc = bad(r, err, "a reply of too many elements");
		} else if (e.kind == RESP_BULK) {
			if ((uint64_t)e.n > bytes)
				return bad(r, err, "a reply that is too long");
			bytes -= (uint64_t)e.n;
			rc = resp_skip(r, (uint64_t)e.n, err);
			if (!rc)
				rc = resp_crlf(r, err);
		}
		if (rc || !todo)
			return rc;
		todo--;
		rc = resp_reply(r, &e, err);
		if (rc)
			return rc;
	}
}

/* ---- writing ---- */

void resp_add(struct resp *r, const void *p, size_t n)
{
	struct ds_err err;

	/* A failure stays: whoever reads or sends next is told. */
	if (r->out.len + n > OUT_FULL && r->out.len)
		(void)resp_flush(r, &err);
	buf_add(&r->out, p, n);
}

void resp_add_cstr(struct resp *r, const char *s)
{
	resp_add(r, s, strlen(s));
}

void resp_add_head(struct resp *r, char kind, int64_t n)
{
	char s[32];

	resp_add(r, s, (size_t)snprintf(s, sizeof s, "%c%" PRId64 "\r\n", kind, n));
}

void resp_add_bulk(struct resp *r, const void *p, size_t n)
{
	resp_add_head(r, '$', (int64_t)n);
	resp_add(r, p, n);
	resp_add_cstr(r, "\r\n");
}
