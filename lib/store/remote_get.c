/*
 * Items that come from a ds-kvstore.
 *
 * As bytes, a payload whose size is a multiple of 64 is read to its place from the socket.  As ranges of files, it is
 * read to its place from the file, in pieces, and each is hashed while the processor's caches still have it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "base/xxh3.h"
#include "store/remote_impl.h"

enum { PIECE = 1 << 20 };

struct getting {
	struct remote_session *ss;
	const struct store_key *keys; /* [n] */
	size_t n;
	const struct store_sink *sink;
	size_t got;
	bool over;      /* no more is wanted, or an item was not right */
	bool doubted;   /* the latter: keys[got] */
	bool placed;    /* the item that comes now has its place */
	struct store_item item;
	uint8_t *place; /* [item.size] */
};

/* ---- one item ---- */

/* This item is not what was put: as if it were not there. */
static int wrong(struct getting *g)
{
	g->over = g->doubted = true;
	return 0;
}

/* What f says of itself; asks where it is to go. */
static int begin_item(struct getting *g, const struct frame *f, struct ds_err *err)
{
	int rc = store_item_get(f, &g->item, err);

	if (rc)
		return wire_nonsense(g->ss, err);
	if (g->got == g->n || !store_key_equal(&g->item.key, &g->keys[g->got])) {
		err_set(err, DS_PROTO, "an item that was not asked for");
		return wire_nonsense(g->ss, err);
	}
	g->place = g->sink->place(g->sink->ctx, g->got, &g->item);
	g->placed = g->place != NULL;
	g->over = !g->placed;
	return 0;
}

static void end_item(struct getting *g)
{
	g->placed = false;
	if (!g->sink->done(g->sink->ctx, g->got))
		g->over = true;
	g->got++;
}

/* Its payload as a frame reader gives it, checked, is brought to its place. */
static void copy_item(struct getting *g, const uint8_t *data)
{
	store_item_plain(&g->item, data, g->place);
	end_item(g);
}

/* ---- bytes ---- */

static uint8_t unwanted[FRAME_ALIGN];

static int item_head(struct getting *g, struct frame *f, struct ds_err *err)
{
	int rc = g->over ? 0 : begin_item(g, f, err);

	if (rc)
		return rc;
	if (g->over) { /* read and dropped */
		frame_reader_into(g->ss->in, unwanted);
		frame_reader_forget(g->ss->in);
	} else if (!g->item.planes && g->item.size == f->data_len && f->data_len) {
		frame_reader_into(g->ss->in, g->place);
	}
	return 0;
}

static int item_body(struct getting *g, struct frame *f, struct ds_err *err)
{
	if (g->over)
		return 0;
	if (frame_check_payload(f, err))
		return wrong(g);
	if (f->data && f->data == g->place)
		end_item(g);
	else
		copy_item(g, f->data);
	return 0;
}

/* ---- ranges of files ---- */

void remote_files_close(struct remote_session *ss)
{
	for (size_t i = 0; i < STORE_MESSAGE_SEGMENTS; i++)
		if (ss->files[i] >= 0) {
			close(ss->files[i]);
			ss->files[i] = -1;
		}
}

static int take_file(struct getting *g, const struct frame *f, struct ds_err *err)
{
	struct remote_session *ss = g->ss;
	uint64_t number;
	int fd = frame_reader_take_fd(ss->in), rc = store_segment_get(f, &number, err);

	if (!rc && fd >= 0 && ss->files[number] < 0) {
		ss->files[number] = fd;
		return 0;
	}
	if (!rc)
		err_set(err, DS_PROTO, fd < 0 ? "a file without its descriptor" : "a file's number twice");
	if (fd >= 0)
		close(fd);
	else
		ss->no_fds = true;
	return wire_nonsense(ss, err);
}

/* True: all of it. */
static bool read_file(int fd, void *p, size_t n, int64_t at)
{
	while (n) {
		ssize_t got = pread(fd, p, n, (off_t)at);

		if (got <= 0 && !(got < 0 && errno == EINTR))
			return false;
		if (got > 0) {
			p = (uint8_t *)p + got;
			n -= (size_t)got;
			at += got;
		}
	}
	return true;
}

static uint8_t *room(uint8_t **p, size_t *cap, size_t n, struct ds_err *err)
{
	if (*cap < n) {
		free(*p);
		*cap = 0;
		*p = aligned_alloc(FRAME_ALIGN, round_up(n, 4096));
		if (*p)
			*cap = round_up(n, 4096);
		else
			err_nomem(err, n, "an item");
	}
	return *p;
}

/* The payload of a file to p [n] and its tail, piece by piece; false: it cannot be read, or is not what was put. */
static bool read_hashed(struct getting *g, int fd, int64_t at, uint8_t *p, size_t n, size_t tail)
{
	struct xxh3_state state;
	uint8_t pad[FRAME_ALIGN];
	size_t piece;

	xxh3_begin(&state);
	for (size_t done = 0; done < n; done += piece) {
		piece = n - done < PIECE ? n - done : PIECE;
		if (wire_late(g->ss) || !read_file(fd, p + done, piece, at + (int64_t)done))
			return false;
		xxh3_add(&state, p + done, piece);
	}
	if (tail && !read_file(fd, pad, tail, at + (int64_t)n))
		return false;
	xxh3_add(&state, pad, tail);
	return n + tail == 0 || xxh3_end(&state) == g->item.xxh;
}

/* A payload that is compressed, or whose bytes are taken apart. */
static int read_coded(struct getting *g, int fd, int64_t at, struct ds_err *err)
{
	struct remote_session *ss = g->ss;
	size_t n = g->item.stored, plain = round_up(g->item.size, FRAME_ALIGN);
	uint64_t most = ss->base.store->o.max_frame ? ss->base.store->o.max_frame : FRAME_MAX_DEFAULT;
	uint8_t *coded, *data = NULL;

	if (n > most || g->item.size > most) /* as with bytes from the socket: what a peer says takes no memory */
		return wrong(g);
	coded = room(&ss->coded, &ss->coded_cap, n, err);
	if (coded)
		data = g->item.zstd ? room(&ss->plain, &ss->plain_cap, plain, err) : coded;
	if (!data)
		return DS_OS;
	if (!read_file(fd, coded, n, at) || !store_item_decode(&g->item, coded, data) ||
		xxh3(data, plain) != g->item.xxh)
		return wrong(g);
	copy_item(g, data);
	return 0;
}

static int read_payload(struct getting *g, int fd, int64_t at, struct ds_err *err)
{
	const struct store_item *item = &g->item;

	if (item->zstd || item->planes)
		return read_coded(g, fd, at, err);
	if (item->stored < item->size || item->stored - item->size >= FRAME_ALIGN ||
		!read_hashed(g, fd, at, g->place, item->size, item->stored - item->size))
		return wrong(g);
	end_item(g);
	return 0;
}

static int read_range(struct getting *g, const struct store_range *r, struct ds_err *err)
{
	struct remote_session *ss = g->ss;
	size_t n = (size_t)r->head_bytes;
	int fd = ss->files[r->segment], rc;
	struct frame f;

	if (fd < 0) {
		err_set(err, DS_PROTO, "an item in a file that was not passed");
		return wire_nonsense(ss, err);
	}
	if (!room(&ss->front, &ss->front_cap, STORE_MESSAGE_HEAD, err))
		return DS_OS;
	if (!read_file(fd, ss->front, n, r->offset) || frame_front_bytes(ss->front) != n ||
		frame_parse(ss->parser, ss->front, n, &f, err) || f.type != FRAME_STORE ||
		f.data_len != r->data_bytes || store_item_get(&f, &g->item, err))
		return wrong(g);
	g->over = store_item_expired(&g->item, (uint64_t)time_wall_ns()); /* nobody else has looked */
	if (g->over)
		return 0;
	rc = begin_item(g, &f, err);
	if (!rc && !g->over)
		rc = read_payload(g, fd, r->offset + r->head_bytes, err);
	if (!rc && wire_late(ss))
		rc = wire_too_late(ss, err);
	return rc;
}

static int read_ranges(struct getting *g, const struct frame *f, struct ds_err *err)
{
	const struct store_range *v;
	size_t n;
	int rc = store_ranges_get(f, &v, &n, err);

	if (rc)
		return wire_nonsense(g->ss, err);
	for (size_t i = 0; i < n && !g->over && !rc; i++)
		rc = read_range(g, v + i, err);
	remote_files_close(g->ss);
	return rc;
}

/* ---- the answer ---- */

/* One frame of it; *last: it was the last. */
static int one_frame(struct getting *g, enum frame_event ev, struct frame *f, bool *last, struct ds_err *err)
{
	struct store_answer a;
	enum store_op op;

	if (store_op_get(f, &op, err))
		return wire_nonsense(g->ss, err);
	if (op == STORE_OP_PUT)
		return ev == FRAME_HEAD ? item_head(g, f, err) : item_body(g, f, err);
	if (ev == FRAME_HEAD)
		return 0;
	if (op == STORE_OP_SEGMENT)
		return take_file(g, f, err);
	if (op == STORE_OP_RANGES)
		return read_ranges(g, f, err);
	*last = op == STORE_OP_OK;
	if (*last && store_answer_get(f, STORE_OP_GET, g->n, false, &a, err) == 0)
		return 0;
	return wire_nonsense(g->ss, err);
}

int remote_get(struct store_session *base, const struct store_key *keys, size_t n, const struct store_sink *sink,
	size_t *got, struct ds_err *err)
{
	struct remote_session *ss = (struct remote_session *)base;
	struct getting g = { .ss = ss, .keys = keys, .n = n, .sink = sink };
	const struct store_request ask = { .op = STORE_OP_GET, .n = n, .fds = ss->r->fds && !ss->no_fds };
	const struct iovec iov = { (void *)(uintptr_t)keys, n * sizeof *keys };
	enum frame_event ev;
	struct frame *f;
	bool last = false;
	int rc;

	meta_reset(ss->meta);
	store_request_put(ss->meta, &ask);
	rc = wire_ask(ss, &iov, 1, false, err);
	while (!rc && !last) {
		rc = wire_next(ss, &ev, &f, err);
		if (!rc)
			rc = one_frame(&g, ev, f, &last, err);
	}
	remote_files_close(ss);
	*got = g.got;
	if (!rc && g.doubted)
		remote_doubt(base, &keys[g.got]);
	return rc;
}
