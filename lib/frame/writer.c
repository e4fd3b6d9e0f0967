#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/mem.h"
#include "base/xxh3.h"
#include "frame/writer_impl.h"

enum {
	ZSTD_LEVEL = 1,         /* faster than most links */
	PAD_KEY = 2,            /* a1 5f */
	XXH_BYTES = 1 + 3 + 9,  /* a3 "xxh" cf ........ */
	/* all but the builder's bytes */
	ROOM = FRAME_HEAD_BYTES + 5 + XXH_BYTES + PAD_KEY + FRAME_ALIGN + 2 + FRAME_BIN_BYTES,
};

static const uint8_t zeros[FRAME_ALIGN];

int frame_writer_new(struct frame_writer **out, int fd, const char *name, struct ds_err *err)
{
	struct frame_writer *w = mem_calloc(1, sizeof *w);

	*out = NULL;
	if (!w || !(w->name = strdup(name))) {
		free(w);
		return err_nomem(err, sizeof *w, "frame writer");
	}
	w->fd = fd;
	*out = w;
	return 0;
}

void frame_writer_free(struct frame_writer *w)
{
	if (!w)
		return;
	free(w->name);
	free(w->head);
	free(w->iov);
	free(w->queue);
	free(w);
}

/* ---- frames ---- */

static void put_head(struct frame_writer *w, unsigned type, unsigned flags, uint64_t stream, uint64_t seq,
	uint32_t meta_len, uint32_t data_len)
{
	uint8_t *h = w->head;

	memcpy(h, "\x9a\xa4" "DSF1" "\xcc", 7);
	h[7] = (uint8_t)type;
	h[8] = 0xcd;
	put_be16(h + 9, flags);
	h[11] = 0xcf;
	put_be64(h + 12, stream);
	h[20] = 0xcf;
	put_be64(h + 21, seq);
	h[29] = 0xce;
	put_be32(h + 30, meta_len);
	h[34] = 0xce;
	put_be32(h + 35, data_len);
	h[39] = 0xce;
	put_be32(h + 40, crc32_add(crc32_add(0, h, 39), h + FRAME_HEAD_BYTES, meta_len));
	h[FRAME_HEAD_BYTES + meta_len] = 0xc6;
	put_be32(h + FRAME_HEAD_BYTES + meta_len + 1, data_len);
}

static uint8_t *put_map(uint8_t *p, size_t pairs)
{
	if (pairs < 16) {
		*p++ = (uint8_t)(0x80 | pairs);
		return p;
	}
	if (pairs < 0x10000) {
		*p++ = 0xde;
		put_be16(p, (unsigned)pairs);
		return p + 2;
	}
	*p++ = 0xdf;
	put_be32(p, (uint32_t)pairs);
	return p + 4;
}

/* The value of "_": a string that fills 1 .. 64 bytes, header included. */
static uint8_t *put_padding(uint8_t *p, size_t bytes)
{
	size_t head = bytes <= 32 ? 1 : 2;

	if (head == 1) {
		*p++ = (uint8_t)(0xa0 | (bytes - 1));
	} else {
		*p++ = 0xd9;
		*p++ = (uint8_t)(bytes - 2);
	}
	memset(p, ' ', bytes - head);
	return p + (bytes - head);
}

static int need_head(struct frame_writer *w, size_t n, struct ds_err *err)
{
	uint8_t *p;

	if (n <= w->head_cap)
		return 0;
	p = mem_realloc(w->head, n, 1);
	if (!p)
		return err_nomem(err, n, "frame meta");
	w->head = p;
	w->head_cap = n;
	return 0;
}

/* Meta behind the head's place, padded so that what follows the bin header is aligned; its length is left in
 * *meta_len. */
static int put_meta(struct frame_writer *w, const struct meta_builder *meta, const uint64_t *xxh, uint32_t *meta_len,
	struct ds_err *err)
{
	const uint8_t *built;
	uint8_t *p;
	size_t n, pairs, used;
	int rc = meta_built(meta, &built, &n, &pairs, err);

	if (rc)
		return rc;
	if (n > FRAME_META_MAX - ROOM)
		return err_set(err, DS_DATA, "frame meta of %zu bytes is over the limit of %d", n,
			FRAME_META_MAX - ROOM);
	rc = need_head(w, n + ROOM, err);
	if (rc)
		return rc;
	p = put_map(w->head + FRAME_HEAD_BYTES, pairs + 1 + (xxh != NULL));
	if (n)
		memcpy(p, built, n);
	p += n;
	if (xxh) {
		memcpy(p, "\xa3xxh\xcf", 5);
		put_be64(p + 5, *xxh);
		p += XXH_BYTES;
	}
	memcpy(p, "\xa1_", PAD_KEY);
	p += PAD_KEY;
	used = (size_t)(p - w->head) + FRAME_BIN_BYTES;
	p = put_padding(p, FRAME_ALIGN - used % FRAME_ALIGN);
	*meta_len = (uint32_t)(p - w->head - FRAME_HEAD_BYTES);
	return 0;
}

static uint64_t hash_payload(const struct iovec *iov, size_t n, size_t pad)
{
	struct xxh3_state s;

	xxh3_begin(&s);
	for (size_t i = 0; i < n; i++)
		xxh3_add(&s, iov[i].iov_base, iov[i].iov_len);
	xxh3_add(&s, zeros, pad);
	return xxh3_end(&s);
}

/* The payload, padded, as one compressed piece. */
static int compress(const struct iovec *iov, size_t n, size_t pad, struct buf *out, struct ds_err *err)
{
	struct buf plain = { 0 };
	size_t cap, got;
	int rc = 0;

	for (size_t i = 0; i < n; i++)
		buf_add(&plain, iov[i].iov_base, iov[i].iov_len);
	buf_add(&plain, zeros, pad);
	cap = ZSTD_compressBound(plain.len);
	out->p = plain.nomem ? NULL : mem_array(cap, 1);
	if (!out->p) {
		rc = err_nomem(err, cap, "a compressed payload");
		goto out;
	}
	got = ZSTD_compress(out->p, cap, plain.p, plain.len, ZSTD_LEVEL);
	if (ZSTD_isError(got))
		rc = err_set(err, DS_BUG, "cannot compress a payload: %s", ZSTD_getErrorName(got));
	else
		out->len = got;
out:
	buf_free(&plain);
	return rc;
}

static int ready(struct frame_writer *w, struct ds_err *err)
{
	if (w->failed) {
		*err = w->error;
		return err->code;
	}
	if (w->ended)
		return err_set(err, DS_BUG, "a frame after the end frame of '%s'", w->name);
	return 0;
}

static int need_iov(struct frame_writer *w, size_t n, struct ds_err *err)
{
	struct iovec *p;

	if (n <= w->iov_cap)
		return 0;
	p = mem_realloc(w->iov, n, sizeof *p);
	if (!p)
		return err_nomem(err, n * sizeof *p, "pieces of a frame");
	w->iov = p;
	w->iov_cap = n;
	return 0;
}

static int payload_size(const struct iovec *iov, size_t n, size_t *total, struct ds_err *err)
{
	*total = 0;
	for (size_t i = 0; i < n; i++)
		if (__builtin_add_overflow(*total, iov[i].iov_len, total))
			*total = SIZE_MAX;
	if (*total > UINT32_MAX - FRAME_ALIGN)
		return err_set(err, DS_DATA, "a payload of %zu bytes does not fit a frame", *total);
	return 0;
}

/* Head and meta are in w->head; adds the pieces and sends. */
static int send_frame(struct frame_writer *w, unsigned type, unsigned flags, uint64_t stream, uint32_t meta_len,
	const struct iovec *iov, size_t n, size_t size, size_t pad, struct ds_err *err)
{
	size_t head = FRAME_HEAD_BYTES + (size_t)meta_len + FRAME_BIN_BYTES;
	int rc = need_iov(w, n + 2, err);

	if (rc)
		return rc;
	put_head(w, type, flags, stream, w->seq, meta_len, (uint32_t)(size + pad));
	w->iov[0] = (struct iovec){ w->head, head };
	if (n)
		memcpy(w->iov + 1, iov, n * sizeof *iov);
	w->iov[n + 1] = (struct iovec){ (void *)(uintptr_t)zeros, pad };
	w->seq++;
	w->bytes += head + size + pad;
	return frame_out(w, w->iov, n + 2, err);
}

int frame_write(struct frame_writer *w, unsigned type, unsigned flags, uint64_t stream, const struct meta_builder *meta,
	const struct iovec *iov, int n, bool hash, struct ds_err *err)
{
	struct buf packed = { 0 };
	struct iovec one;
	size_t size, pad, pieces = n > 0 ? (size_t)n : 0;
	uint64_t xxh = 0;
	uint32_t meta_len = 0;
	int rc = ready(w, err);

	if (!rc)
		rc = payload_size(iov, pieces, &size, err);
	if (rc)
		return rc;
	pad = round_up(size, FRAME_ALIGN) - size;
	hash = hash && size;
	if (hash)
		xxh = hash_payload(iov, pieces, pad);
	if (!size)
		flags &= ~(unsigned)FRAME_ZSTD;
	if (flags & FRAME_ZSTD) {
		rc = compress(iov, pieces, pad, &packed, err);
		size = packed.len;
		pad = round_up(size, FRAME_ALIGN) - size;
		one = (struct iovec){ packed.p, size };
		iov = &one;
		pieces = 1;
	}
	if (!rc)
		rc = put_meta(w, meta, hash ? &xxh : NULL, &meta_len, err);
	if (!rc)
		rc = send_frame(w, type, flags, stream, meta_len, iov, pieces, size, pad, err);
	buf_free(&packed);
	return rc;
}

/* The meta of a frame that came, behind the head's place. */
static int take_meta(struct frame_writer *w, const struct frame *f, struct ds_err *err)
{
	int rc = ready(w, err);

	if (!rc)
		rc = need_head(w, f->meta_len + (size_t)ROOM, err);
	if (!rc)
		memcpy(w->head + FRAME_HEAD_BYTES, f->meta_raw, f->meta_len);
	return rc;
}

int frame_forward(struct frame_writer *w, const struct frame *f, struct ds_err *err)
{
	struct iovec iov = { f->data, f->data_len };
	int rc = take_meta(w, f, err);

	if (rc)
		return rc;
	return send_frame(w, f->type, f->flags, f->stream, f->meta_len, &iov, f->data_len != 0, f->data_len, 0, err);
}

/* Head and meta, which are in w->head, as a piece; the frame counts as written. */
static struct iovec front_of(struct frame_writer *w, unsigned type, unsigned flags, uint64_t stream, uint32_t meta_len,
	uint32_t data_len)
{
	struct iovec front = { w->head, FRAME_HEAD_BYTES + (size_t)meta_len + FRAME_BIN_BYTES };

	put_head(w, type, flags, stream, w->seq++, meta_len, data_len);
	w->bytes += front.iov_len + data_len;
	return front;
}

int frame_forward_file(struct frame_writer *w, const struct frame *f, unsigned flags, uint64_t stream, int fd,
	uint64_t offset, struct ds_err *err)
{
	int rc = take_meta(w, f, err);
	struct iovec front;

	if (rc)
		return rc;
	front = front_of(w, f->type, flags, stream, f->meta_len, f->data_len);
	return frame_out_file(w, &front, fd, offset, f->data_len, err);
}

int frame_write_fd(struct frame_writer *w, unsigned type, uint64_t stream, const struct meta_builder *meta, int fd,
	struct ds_err *err)
{
	uint32_t meta_len = 0;
	struct iovec front;
	int rc = ready(w, err);

	if (!rc)
		rc = put_meta(w, meta, NULL, &meta_len, err);
	if (rc)
		return rc;
	front = front_of(w, type, 0, stream, meta_len, 0);
	return frame_out_fd(w, &front, fd, err);
}

int frame_encode(struct frame_writer *w, unsigned type, unsigned flags, uint64_t stream, uint64_t seq,
	const struct meta_builder *meta, const struct iovec *iov, int n, bool hash, struct frame_front *front,
	struct ds_err *err)
{
	size_t size, pieces = n > 0 ? (size_t)n : 0;
	uint32_t meta_len = 0;
	uint64_t xxh = 0;
	int rc = payload_size(iov, pieces, &size, err);

	if (rc)
		return rc;
	front->pad = round_up(size, FRAME_ALIGN) - size;
	hash = hash && size;
	if (hash)
		xxh = hash_payload(iov, pieces, front->pad);
	rc = put_meta(w, meta, hash ? &xxh : NULL, &meta_len, err);
	if (rc)
		return rc;
	put_head(w, type, flags, stream, seq, meta_len, (uint32_t)(size + front->pad));
	front->p = w->head;
	front->n = FRAME_HEAD_BYTES + (size_t)meta_len + FRAME_BIN_BYTES;
	return 0;
}

int frame_write_end(struct frame_writer *w, struct ds_err *err)
{
	struct meta_builder *b = meta_new();
	int rc;

	if (!b)
		return err_nomem(err, 64, "frame meta");
	meta_put_uint(b, "frames", w->seq);
	meta_put_uint(b, "bytes", w->bytes);
	rc = frame_write(w, FRAME_END, 0, 0, b, NULL, 0, false, err);
	w->ended = true;
	meta_free(b);
	return rc;
}

uint64_t frame_stream_id(const char *name, size_t n)
{
	uint64_t id = xxh3(name, n);

	return id ? id : 1;
}
