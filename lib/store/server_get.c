/*
 * Items out.  Of a store of files: to a client of a unix socket that asks for it, as ranges of files whose descriptors
 * it is given; else the kernel sends the payload from the file.  Of any other store: through memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "store/server_impl.h"

/* ---- by descriptor ---- */

enum { RANGES = 256 }; /* in a frame: the client reads them while we look for the next ones */

struct window {
	struct store_range v[RANGES];
	size_t n, segments;
	uint64_t segment[STORE_MESSAGE_SEGMENTS];
};

static int send_window(struct store_client *c, uint64_t stream, struct window *w, struct ds_err *err)
{
	struct iovec iov = { w->v, w->n * sizeof *w->v };
	size_t n = w->n;

	w->n = w->segments = 0;
	if (!n)
		return 0;
	meta_reset(c->meta);
	store_ranges_put(c->meta, n);
	return client_send(c, stream, &iov, 1, err);
}

/* A descriptor with which nothing can be written: the file again; -1 and errno: it cannot be had. */
static int reading(struct store *s, int fd)
{
	char path[40];
	int again;

	if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY)
		return fd;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	do
		again = open(path, O_RDONLY | O_CLOEXEC);
	while (again < 0 && (errno == EMFILE || errno == ENFILE) && store_spare(s));
	return again;
}

/* The number that the file has in the window, having been passed; why: it cannot be. */
static int pass_file(struct store_client *c, uint64_t stream, struct window *w, const struct store_ref *ref,
	int64_t *number, struct ds_err *why, struct ds_err *err)
{
	int fd, rc;

	for (size_t i = 0; i < w->segments; i++)
		if (w->segment[i] == ref->segment) {
			*number = (int64_t)i;
			return 0;
		}
	fd = reading(c->sv->store, ref->fd);
	if (fd < 0) { /* the item is there: that is no miss */
		err_errno(why, DS_TEMP, "a file of the store cannot be passed on");
		return 0;
	}
	*number = (int64_t)w->segments;
	w->segment[w->segments++] = ref->segment;
	meta_reset(c->meta);
	store_segment_put(c->meta, (uint64_t)*number);
	rc = client_sent(c, frame_write_fd(c->w, FRAME_STORE, stream, c->meta, fd, err), err);
	if (fd != ref->fd)
		close(fd);
	return rc;
}

/* ---- by the kernel ---- */

static bool read_front(int fd, uint8_t *p, size_t n, uint64_t at)
{
	while (n) {
		ssize_t got = pread(fd, p, n, (off_t)at);

		if (got <= 0 && !(got < 0 && errno == EINTR))
			return false;
		if (got > 0) {
			p += got;
			n -= (size_t)got;
			at += (uint64_t)got;
		}
	}
	return true;
}

/* The item as it lies there; *no: it is not what was put, which the store is told, or its time is over. */
static int send_file(struct store_client *c, uint64_t stream, const struct store_key *key, const struct store_ref *ref,
	bool *no, struct ds_err *err)
{
	const struct store_ops *ops = c->sv->store->ops;
	struct store_item item;
	struct ds_err why;
	struct frame f;
	int rc;

	*no = ref->head_bytes > sizeof c->front || !read_front(ref->fd, c->front, ref->head_bytes, ref->offset) ||
		frame_front_bytes(c->front) != ref->head_bytes ||
		frame_parse(c->parser, c->front, ref->head_bytes, &f, &why) || f.data_len != ref->data_bytes ||
		store_item_get(&f, &item, &why) || !store_key_equal(&item.key, key);
	if (*no && ops->doubt)
		ops->doubt(c->ss, key);
	*no = *no || store_item_expired(&item, (uint64_t)time_wall_ns());
	if (*no)
		return 0;
	atomic_fetch_add(&c->sv->counts.sent_bytes, f.data_len);
	rc = frame_forward_file(c->w, &f, f.flags, stream, ref->fd, ref->offset + ref->head_bytes, err);
	return client_sent(c, rc, err);
}

/* ---- stores of files ---- */

/* One item; *no: there is none; why: it cannot be sent. */
static int send_found(struct store_client *c, uint64_t stream, struct window *w, const struct store_key *key,
	const struct store_ref *ref, bool *no, struct ds_err *why, struct ds_err *err)
{
	int64_t number = 0;
	int rc;

	if (!w)
		return send_file(c, stream, key, ref, no, err);
	if (w->n == RANGES || w->segments == STORE_MESSAGE_SEGMENTS) {
		rc = send_window(c, stream, w, err);
		if (rc)
			return rc;
	}
	rc = pass_file(c, stream, w, ref, &number, why, err);
	if (rc || why->code)
		return rc;
	w->v[w->n++] = (struct store_range){ number, (int64_t)ref->offset, ref->head_bytes, ref->data_bytes };
	atomic_fetch_add(&c->sv->counts.fd_bytes, ref->data_bytes);
	return 0;
}

/* Up to the first that is missing.  why: of the store. */
static int get_found(struct store_client *c, uint64_t stream, const struct store_request *q, struct window *w,
	size_t *got, struct ds_err *why, struct ds_err *err)
{
	const struct store_key *keys = (const struct store_key *)q->keys;
	const struct store_ops *ops = c->sv->store->ops;
	struct store_ref ref;
	bool no = false;
	int rc = 0;

	for (*got = 0; *got < q->n && !rc; *got += !rc) {
		int found = ops->find(c->ss, &keys[*got], &ref, why);

		if (found) {
			why->code = found == DS_NO ? 0 : found;
			break;
		}
		why->code = 0;
		rc = send_found(c, stream, w, &keys[*got], &ref, &no, why, err);
		ops->release(c->ss, &ref);
		client_deadline(c);
		if (no || why->code)
			break;
	}
	return rc || !w ? rc : send_window(c, stream, w, err);
}

/* ---- other stores ---- */

struct passing {
	struct store_client *c;
	uint64_t stream;
	struct store_item item;
	struct buf meta;            /* the item's, packed */
	struct store_buffer data;
	int rc;                     /* of the connection */
	struct ds_err *err, why;    /* why: an item got no memory */
};

static void *pass_place(void *ctx, size_t i, const struct store_item *item)
{
	struct passing *p = ctx;
	size_t padded = round_up((size_t)item->size, FRAME_ALIGN);
	int64_t peer = p->c->sv->o.peer_ns;

	(void)i;
	store_pool_give(&p->c->sv->pool, &p->data);
	p->item = *item;
	p->meta.len = 0;
	buf_add(&p->meta, item->meta_raw, item->meta_len);
	if (p->meta.nomem || padded > p->c->sv->o.max_frame) {
		err_nomem(&p->why, padded, "an item");
		return NULL;
	}
	if (store_pool_take(&p->c->sv->pool, padded, peer ? time_mono_ns() + peer : 0, &p->data, &p->why))
		return NULL;
	memset(p->data.p + item->size, 0, padded - item->size);
	return p->data.p;
}

/* Its meta as it was, if the payload is, too; else without what was said of planes. */
static int pass_on(struct passing *p, struct ds_err *err)
{
	static const char *const but[] = { "planes", "xxh", "_", NULL };
	struct store_client *c = p->c;
	struct iovec iov = { p->data.p, (size_t)p->item.size };
	struct frame f = { .type = FRAME_STORE, .stream = p->stream, .meta_raw = (uint8_t *)p->meta.p,
		.meta_len = p->item.meta_len, .data = p->data.p,
		.data_len = (uint32_t)round_up((size_t)p->item.size, FRAME_ALIGN) };
	struct meta_doc *doc;
	int rc;

	if (!p->item.planes)
		return frame_forward(c->w, &f, err);
	rc = meta_parse(&doc, f.meta_raw, f.meta_len, err);
	if (rc)
		return rc;
	meta_reset(c->meta);
	meta_put_rest(c->meta, meta_root(doc), but);
	meta_doc_free(doc);
	return frame_write(c->w, FRAME_STORE, 0, p->stream, c->meta, &iov, 1, true, err);
}

static bool pass_done(void *ctx, size_t i)
{
	struct passing *p = ctx;

	(void)i;
	atomic_fetch_add(&p->c->sv->counts.sent_bytes, p->item.size);
	p->rc = client_sent(p->c, pass_on(p, p->err), p->err);
	client_deadline(p->c);
	return p->rc == 0;
}

static int get_through(struct store_client *c, uint64_t stream, const struct store_request *q, size_t *got,
	struct ds_err *why, struct ds_err *err)
{
	struct passing p = { .c = c, .stream = stream, .err = err };
	const struct store_sink sink = { &p, pass_place, pass_done };

	*got = 0;
	if (store_get(c->ss, (const struct store_key *)q->keys, q->n, &sink, got, why) == 0)
		*why = p.why;
	store_pool_give(&c->sv->pool, &p.data);
	buf_free(&p.meta);
	return p.rc;
}

int client_get(struct store_client *c, uint64_t stream, const struct store_request *q, struct ds_err *err)
{
	struct window *w = NULL;
	struct ds_err why = { 0 };
	size_t got = 0;
	int rc;

	if (c->sv->store->ops->find) {
		if (q->fds && c->local)
			w = mem_calloc(1, sizeof *w); /* without: as bytes */
		rc = get_found(c, stream, q, w, &got, &why, err);
	} else {
		rc = get_through(c, stream, q, &got, &why, err);
	}
	free(w);
	if (rc)
		return rc;
	if (why.code) {
		atomic_fetch_add(&c->sv->counts.op[STORE_OP_GET].errors, 1);
		return client_refuse(c, stream, &why, err);
	}
	meta_reset(c->meta);
	meta_put_cstr(c->meta, "op", store_op_name(STORE_OP_OK));
	meta_put_uint(c->meta, "got", got);
	return client_send(c, stream, NULL, 0, err);
}
