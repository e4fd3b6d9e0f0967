/* The connection of a client of ds-kvstore. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "base/version.h"
#include "frame/hello.h"
#include "frame/messages.h"
#include "store/remote_impl.h"

#define CONNECT_NS ((int64_t)2000000000)   /* a peer that takes longer to accept is not there */
#define PATIENCE_NS ((int64_t)60000000000) /* without a deadline: nothing moves for so long */
#define PAUSE_NS ((int64_t)50000000)       /* first, before an absent peer is tried again; twice as long each time */
#define PAUSE_MAX_NS ((int64_t)2000000000)
#define PAUSE_NEW_NS ((int64_t)15000000)   /* before one is that may just be starting, too */

/* ---- waiting ---- */

bool wire_late(const struct remote_session *ss)
{
	int64_t until = store_until(&ss->base);

	return until && time_mono_ns() >= until;
}

int wire_too_late(struct remote_session *ss, struct ds_err *err)
{
	wire_close(ss); /* what comes yet would be taken for the next answer */
	return err_set(err, DS_TEMP, "the store at '%s' did not answer in time", ss->r->addr.text);
}

/* Milliseconds up to `until`, rounded up. */
static int left_ms(int64_t until)
{
	int64_t ms = (until - time_mono_ns() + 999999) / 1000000;

	return ms < 0 ? 0 : ms > INT_MAX ? INT_MAX : (int)ms;
}

/* Until the descriptor is ready; 0, or DS_TEMP. */
static int wait_for(struct remote_session *ss, int fd, short events, int64_t most, struct ds_err *err)
{
	struct pollfd p = { .fd = fd, .events = events };
	int64_t last = time_mono_ns() + most, now, until;

	do {
		int rc;

		now = time_mono_ns();
		until = store_earlier(last, store_until(&ss->base));
		rc = poll(&p, 1, left_ms(until < now + STORE_LOOK_NS ? until : now + STORE_LOOK_NS));
		if (rc > 0)
			return 0;
	} while (now < until);
	return wire_too_late(ss, err);
}

/* ---- connecting ---- */

void wire_close(struct remote_session *ss)
{
	if (ss->fd < 0)
		return;
	remote_files_close(ss);
	remote_shared_free(ss); /* the peer may read it still: another put must not write to it */
	close(ss->fd);
	ss->fd = -1;
	frame_reader_free(ss->in);
	ss->in = NULL;
}

/* Notes that the peer is not there, and keeps errno's words. */
static int absent(struct remote_session *ss, struct ds_err *err)
{
	struct remote *r = ss->r;

	pthread_mutex_lock(&r->lock);
	r->pause_ns = !r->met ? PAUSE_NEW_NS : r->pause_ns ? 2 * r->pause_ns : PAUSE_NS;
	if (r->pause_ns > PAUSE_MAX_NS)
		r->pause_ns = PAUSE_MAX_NS;
	r->again_ns = time_mono_ns() + r->pause_ns;
	r->why = *err;
	pthread_mutex_unlock(&r->lock);
	return err->code;
}

/* It was so a moment ago. */
static int still_absent(struct remote *r, struct ds_err *err)
{
	int rc = 0;

	pthread_mutex_lock(&r->lock);
	if (r->again_ns && time_mono_ns() < r->again_ns) {
		*err = r->why;
		rc = err->code;
	}
	pthread_mutex_unlock(&r->lock);
	return rc;
}

static void present(struct remote *r)
{
	pthread_mutex_lock(&r->lock);
	r->again_ns = r->pause_ns = 0;
	r->met = true;
	pthread_mutex_unlock(&r->lock);
}

static int connected(struct remote_session *ss, int fd, struct ds_err *err)
{
	int why = 0, rc = wait_for(ss, fd, POLLOUT, CONNECT_NS, err);
	socklen_t len = sizeof why;

	if (rc)
		return err_set(err, DS_UNAVAILABLE, "cannot connect to '%s': it does not answer", ss->r->addr.text);
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &len))
		why = errno;
	errno = why;
	return why ? err_errno(err, DS_UNAVAILABLE, "cannot connect to '%s'", ss->r->addr.text) : 0;
}

static int say_hello(struct remote_session *ss, struct ds_err *err);

static int wire_open(struct remote_session *ss, struct ds_err *err)
{
	int64_t until = time_mono_ns() + CONNECT_NS;
	int rc = still_absent(ss->r, err);

	if (rc)
		return rc;
	until = store_earlier(until, store_until(&ss->base));
	rc = addr_start_until(&ss->r->addr, until, &ss->fd, err);
	if (!rc)
		rc = connected(ss, ss->fd, err);
	if (rc) {
		err->code = DS_UNAVAILABLE;
		wire_close(ss);
		return absent(ss, err);
	}
	ss->seq = ss->sent = 0;
	ss->greeted = ss->refused = false;
	rc = frame_reader_new(&ss->in, ss->fd, ss->r->addr.text, ss->base.store->o.max_frame, err);
	if (rc) {
		wire_close(ss);
		return rc;
	}
	frame_reader_fds(ss->in, ss->r->fds);
	frame_reader_hashes(ss->in, true);
	present(ss->r);
	return say_hello(ss, err);
}

/* A connection on which something came unasked, or that has ended, is of no more use. */
static bool stale(const struct remote_session *ss)
{
	char c;

	return recv(ss->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || (errno != EAGAIN && errno != EINTR);
}

/* ---- sending ---- */

/* The peer has closed: what it said before is the reason. */
static int broken(struct remote_session *ss, struct ds_err *err)
{
	struct ds_err lost;
	enum frame_event ev = FRAME_BODY;
	struct frame *f;
	int rc = 0;

	err_errno(&lost, DS_UNAVAILABLE, "the store at '%s' has gone", ss->r->addr.text);
	for (int i = 0; i < 16 && !rc && ev != FRAME_AGAIN && ev != FRAME_EOF; i++) {
		struct error_message m;

		rc = frame_reader_next(ss->in, &ev, &f, err);
		if (!rc && ev == FRAME_BODY && f->type == FRAME_ERROR && !error_get(f, &m, err)) {
			wire_close(ss);
			return err_set(err, (int)m.code, "the store at '%s': %s", ss->r->addr.text, m.text);
		}
	}
	wire_close(ss);
	*err = lost;
	return err->code;
}

static void skip(struct msghdr *m, size_t bytes)
{
	while (m->msg_iovlen && bytes >= m->msg_iov->iov_len) {
		bytes -= m->msg_iov->iov_len;
		m->msg_iov++;
		m->msg_iovlen--;
	}
	if (m->msg_iovlen) {
		m->msg_iov->iov_base = (uint8_t *)m->msg_iov->iov_base + bytes;
		m->msg_iov->iov_len -= bytes;
	}
}

/* pass: a descriptor beside the first byte, -1: none. */
static int send_all(struct remote_session *ss, struct iovec *iov, size_t n, int pass, struct ds_err *err)
{
	union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = { { 0 } };
	struct msghdr all = { .msg_iov = iov, .msg_iovlen = n };
	int rc = 0;

	if (pass >= 0) {
		all.msg_control = &control;
		all.msg_controllen = sizeof control;
		*CMSG_FIRSTHDR(&all) = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
			.cmsg_len = CMSG_LEN(sizeof pass) };
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&all)), &pass, sizeof pass);
	}

	skip(&all, 0);
	while (all.msg_iovlen && !rc) {
		struct msghdr m = all;
		ssize_t sent;

		if (m.msg_iovlen > IOV_MAX)
			m.msg_iovlen = IOV_MAX;
		sent = sendmsg(ss->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent >= 0) {
			ss->sent += (uint64_t)sent;
			skip(&all, (size_t)sent);
			all.msg_control = NULL;
			all.msg_controllen = 0;
		} else if (errno == EAGAIN) {
			rc = wait_for(ss, ss->fd, POLLOUT, PATIENCE_NS, err);
		} else if (errno != EINTR) {
			return broken(ss, err);
		}
		if (!rc && wire_late(ss))
			rc = wire_too_late(ss, err);
	}
	return rc;
}

static int send_frame(struct remote_session *ss, unsigned type, uint64_t stream, const struct iovec *iov, int n,
	bool hash, int pass, struct ds_err *err)
{
	static const uint8_t zeros[FRAME_ALIGN];
	struct frame_front front;
	struct iovec *all = mem_array((size_t)n + 2, sizeof *all);
	int rc;

	if (!all)
		return err_nomem(err, (size_t)n * sizeof *all, "a frame");
	rc = frame_encode(ss->out, type, 0, stream, ss->seq, ss->meta, iov, n, hash, &front, err);
	if (!rc) {
		all[0] = (struct iovec){ (void *)(uintptr_t)front.p, front.n };
		if (n)
			memcpy(all + 1, iov, (size_t)n * sizeof *iov);
		all[n + 1] = (struct iovec){ (void *)(uintptr_t)zeros, front.pad };
		rc = send_all(ss, all, (size_t)n + 2, pass, err);
		ss->seq++;
	}
	free(all);
	return rc;
}

static int say_hello(struct remote_session *ss, struct ds_err *err)
{
	struct hello h = { .minor = 1, .role = "store" };
	struct meta_builder *asked = ss->meta, *b = meta_new();
	int rc;

	if (!b)
		return err_nomem(err, sizeof h, "a frame");
	snprintf(h.program, sizeof h.program, "%.31s", program_invocation_short_name);
	snprintf(h.version, sizeof h.version, "%s", DS_VERSION);
	hello_put(b, &h);
	if (ss->base.hops)
		meta_put_uint(b, "hops", ss->base.hops);
	ss->meta = b;
	rc = send_frame(ss, FRAME_HELLO, 0, NULL, 0, false, -1, err);
	ss->meta = asked;
	meta_free(b);
	return rc;
}

int wire_ready(struct remote_session *ss, struct ds_err *err)
{
	if (wire_late(ss))
		return err_set(err, DS_TEMP, "no time is left to ask the store at '%s'", ss->r->addr.text);
	if (ss->fd >= 0 && ss->greeted && stale(ss))
		wire_close(ss);
	return ss->fd < 0 ? wire_open(ss, err) : 0;
}

int wire_ask(struct remote_session *ss, const struct iovec *iov, int n, bool hash, struct ds_err *err)
{
	int rc = wire_ready(ss, err);

	return rc ? rc : send_frame(ss, FRAME_STORE, ++ss->stream, iov, n, hash, -1, err);
}

int wire_on(struct remote_session *ss, struct ds_err *err)
{
	return send_frame(ss, FRAME_STORE, ++ss->stream, NULL, 0, false, -1, err);
}

int wire_pass(struct remote_session *ss, int fd, struct ds_err *err)
{
	int rc = wire_ready(ss, err);

	return rc ? rc : send_frame(ss, FRAME_STORE, ++ss->stream, NULL, 0, false, fd, err);
}

/* ---- receiving ---- */

int wire_nonsense(struct remote_session *ss, struct ds_err *err)
{
	wire_close(ss);
	err->code = DS_PROTO;
	return err_prefix(err, "the store at '%s' does not answer as it should", ss->r->addr.text);
}

static int nonsense(struct remote_session *ss, const char *what, struct ds_err *err)
{
	err_set(err, DS_PROTO, "%s", what);
	return wire_nonsense(ss, err);
}

static int greet(struct remote_session *ss, const struct frame *f, struct ds_err *err)
{
	struct hello h;
	int rc = hello_get(f, &h, err);

	if (rc)
		return wire_nonsense(ss, err);
	if (strcmp(h.role, "store") != 0) {
		wire_close(ss);
		return err_set(err, DS_PROTO, "'%s' is no store, but %s (role '%s')", ss->r->addr.text,
			h.program, h.role);
	}
	ss->greeted = true;
	return 0;
}

static int told_error(struct remote_session *ss, const struct frame *f, struct ds_err *err)
{
	struct error_message m;

	if (error_get(f, &m, err))
		return wire_nonsense(ss, err);
	if (f->stream == 0)
		wire_close(ss);
	else if (f->stream != ss->stream)
		return nonsense(ss, "an error of another request", err);
	return err_set(err, (int)m.code, "the store at '%s': %s", ss->r->addr.text, m.text);
}

/* Not of an answer: taken care of here; *mine: of the answer. */
static int sort_out(struct remote_session *ss, enum frame_event ev, struct frame *f, bool *mine, struct ds_err *err)
{
	*mine = false;
	if (ev == FRAME_EOF || (ev == FRAME_BODY && f->type == FRAME_END)) {
		wire_close(ss);
		return err_set(err, DS_UNAVAILABLE, "the store at '%s' is ending", ss->r->addr.text);
	}
	if (!ss->greeted && ev == FRAME_BODY && f->type != FRAME_ERROR)
		return greet(ss, f, err);
	if (f->type == FRAME_ERROR)
		return ev == FRAME_BODY ? told_error(ss, f, err) : 0;
	if (f->type == FRAME_END || !ss->greeted)
		return 0;
	if (f->type != FRAME_STORE || f->stream != ss->stream)
		return nonsense(ss, "a frame that is of no request", err);
	*mine = true;
	return 0;
}

int wire_next(struct remote_session *ss, enum frame_event *ev, struct frame **f, struct ds_err *err)
{
	bool mine = false;
	int rc = 0;

	while (!rc && !mine) {
		if (ss->fd < 0)
			return err_set(err, DS_UNAVAILABLE, "the store at '%s' has gone", ss->r->addr.text);
		rc = frame_reader_next(ss->in, ev, f, err);
		if (rc) {
			bool cut = frame_reader_cut(ss->in);

			wire_close(ss);
			err->code = cut ? DS_UNAVAILABLE : rc == DS_OS ? DS_OS : DS_PROTO;
			return err->code;
		}
		if (wire_late(ss))
			return wire_too_late(ss, err);
		if (*ev == FRAME_AGAIN)
			rc = wait_for(ss, ss->fd, POLLIN, PATIENCE_NS, err);
		else
			rc = sort_out(ss, *ev, *f, &mine, err);
	}
	return rc;
}

void wire_end(struct remote_session *ss)
{
	struct ds_err err;

	if (ss->fd < 0)
		return;
	meta_reset(ss->meta);
	meta_put_uint(ss->meta, "frames", ss->seq);
	meta_put_uint(ss->meta, "bytes", ss->sent);
	ss->base.deadline = 1; /* nobody waits for it */
	send_frame(ss, FRAME_END, 0, NULL, 0, false, -1, &err);
	wire_close(ss);
}
