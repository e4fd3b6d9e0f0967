/*
 * The items of a segment, by its frames from the first on.  A frame whose front is wrong ends that, or, where the
 * file's marks are known, the next place is sought at which a right front has the mark of that place.
 */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "store/dir_impl.h"

enum {
	WINDOW_FEW = 4 << 10, WINDOW_MANY = 256 << 10,
	SEEK_WINDOW = 256 << 10, /* the processor's caches hold it */
	SMALL = 64 << 10,
	STREAM_AT = 12,          /* in a frame's head */
};

int scan_begin(struct scan *s, int fd, const struct segment_id *id, const struct keyed *secret, struct ds_err *err)
{
	struct stat st;

	*s = (struct scan){ .fd = fd, .id = *id, .secret = secret, .window = WINDOW_FEW };
	if (fstat(fd, &st) < 0)
		return err_errno(err, DS_IO, "cannot look at a segment");
	s->limit = (uint64_t)st.st_size;
	return frame_parser_new(&s->parser, err);
}

void scan_end(struct scan *s)
{
	frame_parser_free(s->parser);
	free(s->buf);
	s->parser = NULL;
	s->buf = NULL;
}

/* Bytes [at, at + n) of the file, or fewer where it ends; NULL: an error. */
static const uint8_t *bytes_at(struct scan *s, uint64_t at, size_t n, size_t *have, struct ds_err *err)
{
	size_t want = n > s->window ? n : s->window;

	if (at >= s->buf_at && at + n <= s->buf_at + s->have) {
		*have = (size_t)(s->buf_at + s->have - at);
		return s->buf + (at - s->buf_at);
	}
	if (want > s->limit - at)
		want = (size_t)(s->limit - at);
	if (!tools_room(&s->buf, &s->cap, want ? want : 1)) {
		err_nomem(err, want, "a segment");
		return NULL;
	}
	s->buf_at = at;
	s->have = 0;
	while (s->have < want) {
		ssize_t got = pread(s->fd, s->buf + s->have, want - s->have, (off_t)(at + s->have));

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0) {
			err_errno(err, DS_IO, "cannot read a segment");
			return NULL;
		}
		if (!got)
			break;
		s->have += (size_t)got;
	}
	*have = s->have;
	return s->buf;
}

/* A frame's right front begins at `at`: to s->f, s->front.  *right false: it does not. */
static int front_at(struct scan *s, uint64_t at, bool *right, struct ds_err *err)
{
	struct ds_err why;
	const uint8_t *p;
	size_t have, n;

	*right = false;
	if (at + FRAME_HEAD_BYTES > s->limit)
		return 0;
	p = bytes_at(s, at, FRAME_HEAD_BYTES, &have, err);
	if (!p)
		return err->code;
	n = have < FRAME_HEAD_BYTES ? 0 : frame_front_bytes(p);
	if (!n || n % FRAME_ALIGN || n > SEGMENT_FRONT_MAX || at + n > s->limit)
		return 0;
	p = bytes_at(s, at, n, &have, err);
	if (!p)
		return err->code;
	if (have < n || frame_parse(s->parser, p, n, &s->f, &why) || s->f.data_len % FRAME_ALIGN)
		return 0;
	s->front = (uint32_t)n;
	*right = true;
	return 0;
}

/* The same, for a search: it has its place's mark, too, which is looked at first, since anybody may put a payload that
 * is full of what looks like frames. */
static int marked_at(struct scan *s, uint64_t at, bool *right, struct ds_err *err)
{
	size_t have;
	const uint8_t *p = bytes_at(s, at, FRAME_HEAD_BYTES, &have, err);
	uint64_t stream, mark;
	int rc;

	*right = false;
	if (!p)
		return err->code;
	if (have < FRAME_HEAD_BYTES)
		return 0;
	memcpy(&stream, p + STREAM_AT, sizeof stream);
	mark = segment_mark(s->secret, &s->id, at);
	if (be64toh(stream) != mark)
		return 0;
	rc = front_at(s, at, right, err);
	*right = !rc && *right && s->f.stream == mark && s->f.seq > s->frames &&
		s->f.seq - s->frames <= (at - s->at) / FRAME_ALIGN;
	return rc;
}

/* Holes of a sparse file have no frames. */
static uint64_t behind_hole(const struct scan *s, uint64_t at)
{
	off_t data = lseek(s->fd, (off_t)at, SEEK_DATA);

	if (data < 0)
		return errno == ENXIO ? s->limit : at;
	return (uint64_t)data / FRAME_ALIGN * FRAME_ALIGN > at ? (uint64_t)data / FRAME_ALIGN * FRAME_ALIGN : at;
}

/* Bytes of p [n] before what may be a frame's head; at least n - FRAME_HEAD_BYTES + 1: there is none. */
static size_t before_head(const uint8_t *p, size_t n)
{
	static const uint8_t begins[8] = "\x9a\xa4" "DSF1\xcc";
	uint64_t want, is;
	size_t i = 0;

	memcpy(&want, begins, sizeof want);
	for (; i + FRAME_HEAD_BYTES <= n; i += FRAME_ALIGN) {
		memcpy(&is, p + i, sizeof is);
		if (!((is ^ want) & htobe64(~(uint64_t)0xff))) /* the eighth byte is the frame's type */
			break;
	}
	return i;
}

static int seek(struct scan *s, uint64_t *to, bool *right, struct ds_err *err)
{
	uint64_t at = s->at + FRAME_ALIGN;
	int rc = 0;

	*right = false;
	s->window = SEEK_WINDOW;
	while (!rc && !*right) {
		const uint8_t *p;
		size_t have, n;

		if (at < s->buf_at || at + FRAME_HEAD_BYTES > s->buf_at + s->have)
			at = behind_hole(s, at);
		if (at + FRAME_HEAD_BYTES > s->limit)
			break;
		p = bytes_at(s, at, FRAME_HEAD_BYTES, &have, err);
		if (!p)
			return err->code;
		if (have < FRAME_HEAD_BYTES)
			break;
		n = before_head(p, have);
		if (n + FRAME_HEAD_BYTES <= have) {
			*to = at + n;
			rc = marked_at(s, *to, right, err);
			n += FRAME_ALIGN;
		}
		at += n;
	}
	return rc;
}

static int found_gap(struct scan *s, enum scan_got *got, struct ds_err *err)
{
	uint64_t to = 0;
	bool right = false;
	int rc = s->secret ? seek(s, &to, &right, err) : 0;

	if (rc || !right)
		return rc;
	*got = SCAN_GAP;
	s->offset = s->at;
	s->gap = to - s->at;
	s->lost = s->f.seq - s->frames;
	s->at = to;
	s->frames = s->f.seq;
	return 0;
}

static void found_frame(struct scan *s, enum scan_got *got)
{
	struct ds_err why;

	s->offset = s->at;
	s->at += (uint64_t)s->front + s->f.data_len;
	s->frames++;
	s->window = s->at - s->offset <= SMALL ? WINDOW_MANY : WINDOW_FEW;
	if (s->f.type == FRAME_END)
		*got = SCAN_END;
	else
		*got = store_item_get(&s->f, &s->item, &why) ? SCAN_DROPPED : SCAN_ITEM;
}

int scan_next(struct scan *s, enum scan_got *got, struct ds_err *err)
{
	bool right;
	int rc;

	*got = SCAN_STOP;
	for (;;) {
		rc = front_at(s, s->at, &right, err);
		if (rc)
			return rc;
		if (!right || (s->f.seq != s->frames))
			return found_gap(s, got, err);
		if (s->at + s->front + s->f.data_len > s->limit)
			return 0; /* its writer is not done with it, or was killed */
		found_frame(s, got);
		if (s->f.type != FRAME_HELLO)
			return 0;
		*got = SCAN_STOP;
		if (meta_uint(s->f.meta, "reserve", &s->reserve) != META_OK)
			s->reserve = 0;
	}
}

void scan_record(const struct scan *s, struct idx_record *r)
{
	*r = (struct idx_record){ .key = s->item.key, .at_ns = s->item.at_ns };
	r->offset = (uint32_t)(s->offset / INDEX_UNIT);
	r->data = s->f.data_len / INDEX_UNIT;
	r->expires = store_seconds(s->item.expires_ns);
	r->front = (uint16_t)(s->front / INDEX_UNIT);
}
