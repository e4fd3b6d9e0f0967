#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zstd.h>

#include "base/mem.h"
#include "base/xxh3.h"
#include "frame/internal.h"

enum {
	GROW = 1 << 20,       /* payload memory taken before a byte of it has arrived */
	PIECE = 256 << 10,    /* read and hashed at a time */
	KEEP = 8 << 20,       /* payload memory kept from frame to frame */
	ZSTD_WINDOW_LOG = 27,
	KNOWN_FLAGS = FRAME_ZSTD | FRAME_MORE | FRAME_DROPPABLE,
};

enum state { S_HEAD, S_META, S_DATA, S_PLAIN };

struct frame_reader {
	int fd;
	char *name;
	uint64_t max;
	bool polled, hashes, no_zstd, ended, failed, skip, cut, fds;
	int fd_kept[FRAME_FDS];   /* [fd_count] descriptors that came, oldest first */
	size_t fd_count;
	struct ds_err error;      /* sticky, once failed */
	enum state state;
	uint64_t bytes;           /* consumed so far */
	size_t have;              /* bytes of the present part (head, meta, payload) */
	uint8_t head[FRAME_HEAD_BYTES];
	uint8_t *meta;            /* meta and the bin header behind it */
	size_t meta_cap;
	msgpack_zone zone;
	msgpack_object root;
	uint8_t *own, *into;      /* payload memory: ours, or the user's */
	size_t own_cap;
	uint8_t *plain;           /* a decompressed payload */
	bool plain_given;         /* and it was given out (it may be empty, so that f.data does not tell) */
	uint32_t wire_len;        /* data_len before decompression */
	ZSTD_DCtx *zstd;
	struct xxh3_state xxh;    /* of the payload so far */
	struct frame f;
};

int frame_reader_new(struct frame_reader **out, int fd, const char *name, uint64_t max_data, struct ds_err *err)
{
	struct frame_reader *r = mem_aligned(sizeof *r); /* as the state of the hash wants it */

	*out = NULL;
	if (!r)
		return err_nomem(err, sizeof *r, "frame reader");
	r->name = strdup(name);
	if (!r->name || !msgpack_zone_init(&r->zone, 4096)) {
		free(r->name);
		free(r);
		return err_nomem(err, 4096, "frame reader");
	}
	r->fd = fd;
	r->max = max_data ? max_data : FRAME_MAX_DEFAULT;
	*out = r;
	return 0;
}

void frame_reader_free(struct frame_reader *r)
{
	if (!r)
		return;
	while (r->fd_count)
		close(r->fd_kept[--r->fd_count]);
	msgpack_zone_destroy(&r->zone);
	ZSTD_freeDCtx(r->zstd);
	free(r->name);
	free(r->meta);
	free(r->own);
	free(r->plain);
	free(r);
}

/* Every error names where it is (byte: of the frame's start, or where the input ended) and stays. */
static __attribute__((format(printf, 4, 5)))
int bad_at(struct frame_reader *r, uint64_t byte, int code, const char *fmt, ...)
{
	char why[600];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	r->failed = true;
	return err_set(&r->error, code, "'%s': frame %" PRIu64 ", stream %016" PRIx64 ", byte %" PRIu64 ": %s", r->name,
		r->f.number, r->f.stream, byte, why);
}

#define bad(r, code, ...) bad_at(r, (r)->f.offset, code, __VA_ARGS__)

static int bad_err(struct frame_reader *r, const struct ds_err *why)
{
	return bad(r, why->code, "%s", why->text);
}

/* ---- reading bytes ---- */

enum got { GOT_ALL, GOT_AGAIN, GOT_EOF, GOT_ERROR };

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) != 0;
}

/* read(2) that keeps the descriptors which come with the bytes; those that are too many are closed. */
static ssize_t read_fds(struct frame_reader *r, void *p, size_t n)
{
	union { char bytes[CMSG_SPACE(FRAME_FDS * sizeof(int))]; struct cmsghdr align; } control;
	struct iovec iov = { p, n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
		.msg_controllen = sizeof control };
	ssize_t got = recvmsg(r->fd, &m, MSG_CMSG_CLOEXEC);

	for (struct cmsghdr *c = got < 0 ? NULL : CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
			if (r->fd_count < FRAME_FDS)
				r->fd_kept[r->fd_count++] = fd;
			else
				close(fd);
		}
	}
	return got;
}

/* Fills p[have..want). */
static enum got fill(struct frame_reader *r, uint8_t *p, size_t want)
{
	const bool hash = r->hashes && r->state == S_DATA && !r->skip && !(r->f.flags & FRAME_ZSTD);

	while (r->have < want) {
		size_t piece = hash && want - r->have > PIECE ? PIECE : want - r->have;
		ssize_t n;

		if (r->polled && !readable(r->fd))
			return GOT_AGAIN;
		n = r->fds ? read_fds(r, p + r->have, piece) : read(r->fd, p + r->have, piece);
		if (n > 0) {
			if (hash)
				xxh3_add(&r->xxh, p + r->have, (size_t)n);
			r->have += (size_t)n;
			r->bytes += (uint64_t)n;
		} else if (n == 0) {
			return GOT_EOF;
		} else if (errno == EAGAIN || errno == EWOULDBLOCK) {
			return GOT_AGAIN;
		} else if (errno != EINTR) {
			r->cut = true;
			if (errno == ECONNRESET) /* truncation like any other */
				bad_at(r, r->bytes, DS_DATA, "truncated: the connection was reset");
			else
				bad_at(r, r->bytes, DS_IO, "cannot read: %s", strerror(errno));
			return GOT_ERROR;
		}
	}
	return GOT_ALL;
}

static int truncated(struct frame_reader *r, const char *where)
{
	r->cut = true;
	return bad_at(r, r->bytes, DS_DATA, "truncated: input ends %s", where);
}

static int need_own(struct frame_reader *r, size_t cap)
{
	uint8_t *p;

	if (cap <= r->own_cap)
		return 0;
	cap = round_up(cap, FRAME_ALIGN);
	p = aligned_alloc(FRAME_ALIGN, cap);
	if (!p) {
		struct ds_err err;

		err_nomem(&err, cap, "frame payload");
		return bad_err(r, &err);
	}
	if (r->have && !r->skip)
		memcpy(p, r->own, r->have);
	free(r->own);
	r->own = p;
	r->own_cap = cap;
	return 0;
}

/* The payload into our own memory, which grows only as bytes prove the length. */
static enum got fill_own(struct frame_reader *r)
{
	size_t len = r->wire_len;
	enum got got = GOT_ALL;

	while (got == GOT_ALL && r->have < len) {
		size_t cap = r->own_cap > r->have ? r->own_cap : 2 * r->have;

		if (cap < GROW)
			cap = GROW;
		if (cap > len)
			cap = len;
		if (need_own(r, cap))
			return GOT_ERROR;
		got = fill(r, r->own, cap);
	}
	return got;
}

static enum got fill_skip(struct frame_reader *r)
{
	size_t done = r->have, left = r->wire_len - done, piece;
	enum got got = GOT_ALL;

	if (need_own(r, 65536))
		return GOT_ERROR;
	while (left && got == GOT_ALL) {
		piece = left < r->own_cap ? left : r->own_cap;
		r->have = 0;
		got = fill(r, r->own, piece);
		done += r->have;
		left -= r->have;
	}
	r->have = done;
	return got;
}

/* ---- head and meta ---- */

static int parse_head(struct frame_reader *r)
{
	struct ds_err err;

	if (front_head(r->head, &r->f, &err))
		return bad_err(r, &err);
	r->wire_len = r->f.data_len;
	if (r->wire_len > r->max)
		return bad(r, DS_DATA, "payload of %u bytes, the limit is %" PRIu64 " (--max-frame)", r->wire_len,
			r->max);
	if (r->meta_cap < (size_t)r->f.meta_len + FRAME_BIN_BYTES) {
		free(r->meta);
		r->meta_cap = round_up((size_t)r->f.meta_len + FRAME_BIN_BYTES, 4096);
		r->meta = mem_array(r->meta_cap, 1);
		if (!r->meta) {
			r->meta_cap = 0;
			return bad(r, DS_OS, "out of memory: %u bytes for frame meta", r->f.meta_len);
		}
	}
	r->state = S_META;
	r->have = 0;
	return 0;
}

static int parse_meta(struct frame_reader *r)
{
	struct ds_err err;

	if (front_meta(r->head, r->meta, &r->f, &err))
		return bad_err(r, &err);
	if (r->f.seq != r->f.number)
		return bad(r, DS_DATA, "sequence number %" PRIu64 " where %" PRIu64 " is due", r->f.seq, r->f.number);
	r->skip = !frame_type_name(r->f.type) || (r->f.flags & ~(unsigned)KNOWN_FLAGS);
	if (r->no_zstd && (r->f.flags & FRAME_ZSTD))
		return bad(r, DS_DATA, "a compressed payload, where none is taken");
	if (r->skip && !(r->f.flags & FRAME_DROPPABLE))
		return frame_type_name(r->f.type) ? bad(r, DS_DATA, "unknown flags %#x", r->f.flags)
			: bad(r, DS_DATA, "unknown type %u", r->f.type);
	msgpack_zone_clear(&r->zone);
	if (meta_unpack(&r->zone, &r->root, r->meta, r->f.meta_len, &err))
		return bad_err(r, &err);
	r->f.meta.obj = &r->root;
	r->f.meta_raw = r->meta;
	r->f.data = NULL;
	r->f.hashed = false;
	if (r->hashes)
		xxh3_begin(&r->xxh);
	r->into = NULL;
	r->state = S_DATA;
	r->have = 0;
	return 0;
}

/* ---- compressed payloads ---- */

static int grow_plain(struct frame_reader *r, size_t *cap, size_t used)
{
	size_t want = *cap ? *cap * 2 : GROW;
	uint8_t *p;

	if (want > r->max)
		want = r->max;
	want = round_up(want, FRAME_ALIGN);
	if (want <= *cap)
		return bad(r, DS_DATA, "decompressed payload is over the limit of %" PRIu64 " (--max-frame)", r->max);
	p = aligned_alloc(FRAME_ALIGN, want);
	if (!p)
		return bad(r, DS_OS, "out of memory: %zu bytes for a decompressed payload", want);
	if (used)
		memcpy(p, r->plain, used);
	free(r->plain);
	r->plain = p;
	*cap = want;
	return 0;
}

/* One zstd frame and at most 63 zeros behind it. */
static int decompress(struct frame_reader *r)
{
	ZSTD_inBuffer in = { r->own, r->wire_len, 0 };
	ZSTD_outBuffer out = { NULL, 0, 0 };
	size_t cap = 0, rc = 1;

	if (!r->zstd && !(r->zstd = ZSTD_createDCtx()))
		return bad(r, DS_OS, "out of memory for decompression");
	ZSTD_DCtx_reset(r->zstd, ZSTD_reset_session_only);
	ZSTD_DCtx_setParameter(r->zstd, ZSTD_d_windowLogMax, ZSTD_WINDOW_LOG);
	free(r->plain);
	r->plain = NULL;
	while (rc != 0) {
		size_t before = in.pos, made = out.pos;

		if (out.pos == cap && grow_plain(r, &cap, out.pos))
			return r->error.code;
		out.dst = r->plain;
		out.size = cap;
		rc = ZSTD_decompressStream(r->zstd, &out, &in);
		if (ZSTD_isError(rc))
			return bad(r, DS_DATA, "payload does not decompress: %s", ZSTD_getErrorName(rc));
		if (rc && in.pos == before && out.pos == made && out.pos < cap)
			return bad(r, DS_DATA, "compressed payload is cut short");
	}
	if (out.pos > r->max || out.pos > UINT32_MAX)
		return bad(r, DS_DATA, "decompressed payload is over the limit of %" PRIu64 " (--max-frame)", r->max);
	if (in.size - in.pos >= FRAME_ALIGN)
		return bad(r, DS_DATA, "%zu bytes after the compressed payload", in.size - in.pos);
	while (in.pos < in.size)
		if (r->own[in.pos++] != 0)
			return bad(r, DS_DATA, "the compressed payload is padded with other bytes than zeros");
	r->f.data_len = (uint32_t)out.pos;
	r->f.flags &= ~(unsigned)FRAME_ZSTD;
	return 0;
}

/* ---- events ---- */

static int check_end(struct frame_reader *r)
{
	uint64_t frames, bytes, offset = r->f.offset;

	if (meta_uint(r->f.meta, "frames", &frames) != META_OK || meta_uint(r->f.meta, "bytes", &bytes) != META_OK)
		return bad(r, DS_DATA, "an end frame without its counts");
	if (frames != r->f.number || bytes != offset)
		return bad(r, DS_DATA,
			"the end frame counts %" PRIu64 " frames and %" PRIu64 " bytes, here are %" PRIu64
			" and %" PRIu64,
			frames, bytes, r->f.number, offset);
	r->ended = true;
	return 0;
}

static void next_frame(struct frame_reader *r)
{
	if (r->own_cap > KEEP) {
		free(r->own);
		r->own = NULL;
		r->own_cap = 0;
	}
	free(r->plain);
	r->plain = NULL;
	r->plain_given = false;
	r->have = 0;
	r->state = S_HEAD;
	r->f.stream = 0;
	r->f.number++;
}

static int head_eof(struct frame_reader *r, enum frame_event *ev)
{
	if (r->have)
		return truncated(r, "within a frame's head");
	if (!r->ended)
		return truncated(r, r->bytes ? "after a frame that is no end frame" : "before its first frame");
	*ev = FRAME_EOF;
	return 0;
}

/* One step of the state machine; *done: *ev is to be reported. */
static int step_head(struct frame_reader *r, enum frame_event *ev, bool *done)
{
	enum got got;

	if (r->have == 0)
		r->f.offset = r->bytes;
	got = fill(r, r->head, FRAME_HEAD_BYTES);
	if (r->ended && r->have)
		return bad(r, DS_DATA, "bytes after the end frame");
	*done = got != GOT_ALL;
	if (got == GOT_EOF)
		return head_eof(r, ev);
	return got == GOT_ERROR ? r->error.code : got == GOT_ALL ? parse_head(r) : 0;
}

static int step_meta(struct frame_reader *r, enum frame_event *ev, bool *done)
{
	enum got got = fill(r, r->meta, (size_t)r->f.meta_len + FRAME_BIN_BYTES);
	int rc;

	*done = got != GOT_ALL;
	if (got != GOT_ALL)
		return got == GOT_EOF ? truncated(r, "within a frame's meta") : got == GOT_ERROR ? r->error.code : 0;
	rc = parse_meta(r);
	if (!rc && !r->skip && !(r->f.flags & FRAME_ZSTD)) {
		*ev = FRAME_HEAD;
		*done = true;
	}
	return rc;
}

static int body_done(struct frame_reader *r, uint8_t *data, enum frame_event *ev)
{
	r->f.data = r->f.data_len ? data : NULL;
	*ev = FRAME_BODY;
	if (r->f.type == FRAME_END)
		return check_end(r);
	return 0;
}

static int step_data(struct frame_reader *r, enum frame_event *ev, bool *done)
{
	bool zstd = (r->f.flags & FRAME_ZSTD) && !r->skip;
	enum got got = r->skip ? fill_skip(r) : r->into ? fill(r, r->into, r->wire_len) : fill_own(r);
	int rc;

	*done = got != GOT_ALL;
	if (got != GOT_ALL)
		return got == GOT_EOF ? truncated(r, "within a payload") : got == GOT_ERROR ? r->error.code : 0;
	if (r->skip) {
		next_frame(r);
		return 0;
	}
	*done = true;
	r->state = S_PLAIN;
	r->f.hashed = r->hashes && !zstd;
	if (r->f.hashed)
		r->f.hash = xxh3_end(&r->xxh);
	if (!zstd)
		return body_done(r, r->into ? r->into : r->own, ev);
	rc = decompress(r);
	*ev = FRAME_HEAD;
	return rc;
}

/* After the payload: a decompressed one is given out; else the frame was given out before and the next begins. */
static int step_plain(struct frame_reader *r, enum frame_event *ev, bool *done)
{
	if (!r->plain || r->plain_given) {
		next_frame(r);
		return 0;
	}
	*done = r->plain_given = true;
	if (r->into && r->f.data_len) {
		memcpy(r->into, r->plain, r->f.data_len);
		return body_done(r, r->into, ev);
	}
	return body_done(r, r->plain, ev);
}

int frame_reader_next(struct frame_reader *r, enum frame_event *ev, struct frame **f, struct ds_err *err)
{
	bool done = false;
	int rc = 0;

	*ev = FRAME_AGAIN;
	*f = &r->f;
	while (!r->failed && !done) {
		switch (r->state) {
		case S_HEAD: rc = step_head(r, ev, &done); break;
		case S_META: rc = step_meta(r, ev, &done); break;
		case S_DATA: rc = step_data(r, ev, &done); break;
		case S_PLAIN: rc = step_plain(r, ev, &done); break;
		}
		if (rc)
			break;
	}
	if (r->failed) {
		*err = r->error;
		return r->error.code;
	}
	return rc;
}

void frame_reader_into(struct frame_reader *r, void *dst)
{
	r->into = dst;
}

void frame_reader_forget(struct frame_reader *r)
{
	if (r->into && r->state == S_DATA)
		r->skip = true;
	r->into = NULL;
}

bool frame_reader_idle(const struct frame_reader *r)
{
	return (r->state == S_HEAD && r->have == 0) || r->state == S_PLAIN;
}

bool frame_reader_ended(const struct frame_reader *r)
{
	return r->ended;
}

bool frame_reader_cut(const struct frame_reader *r)
{
	return r->cut;
}

void frame_reader_polled(struct frame_reader *r, bool on)
{
	r->polled = on;
}

void frame_reader_hashes(struct frame_reader *r, bool on)
{
	r->hashes = on;
}

void frame_reader_no_zstd(struct frame_reader *r, bool on)
{
	r->no_zstd = on;
}

uint64_t frame_reader_bytes(const struct frame_reader *r)
{
	return r->bytes;
}

void frame_reader_fds(struct frame_reader *r, bool on)
{
	r->fds = on;
}

int frame_reader_take_fd(struct frame_reader *r)
{
	int fd;

	if (!r->fd_count)
		return -1;
	fd = r->fd_kept[0];
	memmove(r->fd_kept, r->fd_kept + 1, --r->fd_count * sizeof fd);
	return fd;
}
