/*
 * The file beside a complete segment: a head, then a record for each item in the order of the segment, in the byte
 * order of the machine.  Each has a check of its own, so that one record can be changed.
 *
 *   head    0 "DSidx1" 0 0   8 u32 0x01020304   12 u32 main   16 time   24 writer   32 bytes of the segment
 *           40 records   48 zero   56 XXH3-64 of 0..55
 *   record  0 key   16 at   24 offset   28 data   32 expires   36 front   38 dead   40 u32 XXH3-64 of 0..39
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "store/dir_impl.h"

enum { RECORD_BODY = IDX_RECORD - 4, HEAD_BODY = IDX_HEAD - 8, GUESSES = 6,
	PIECE = 1024 /* records, read into memory that is used again */ };

bool idx_add(struct idx *x, const struct idx_record *r)
{
	void *p = mem_more(x->rec, &x->cap, x->n, sizeof *x->rec);

	if (!p)
		return false;
	x->rec = p;
	x->rec[x->n++] = *r;
	return true;
}

void idx_free(struct idx *x)
{
	free(x->rec);
	*x = (struct idx){ 0 };
}

static void put_head(uint8_t h[IDX_HEAD], const struct segment_id *id, uint64_t size, uint64_t n)
{
	const uint32_t order = 0x01020304, main = id->main;
	uint64_t sum;

	memset(h, 0, IDX_HEAD);
	memcpy(h, "DSidx1", 6);
	memcpy(h + 8, &order, 4);
	memcpy(h + 12, &main, 4);
	memcpy(h + 16, &id->time, 8);
	memcpy(h + 24, &id->writer, 8);
	memcpy(h + 32, &size, 8);
	memcpy(h + 40, &n, 8);
	sum = XXH3_64bits(h, HEAD_BODY);
	memcpy(h + HEAD_BODY, &sum, 8);
}

/* A record that lies at another place, or in another segment's file, is wrong, too. */
static uint32_t check_of(const uint8_t *r, const struct segment_id *id, size_t i)
{
	return (uint32_t)XXH3_64bits_withSeed(r, RECORD_BODY, id->time ^ id->writer ^ (uint64_t)i << 1 ^ id->main);
}

static void put_record(uint8_t *p, const struct idx_record *r, const struct segment_id *id, size_t i)
{
	uint32_t sum;

	memcpy(p, r->key.b, 16);
	memcpy(p + 16, &r->at_ns, 8);
	memcpy(p + 24, &r->offset, 4);
	memcpy(p + 28, &r->data, 4);
	memcpy(p + 32, &r->expires, 4);
	memcpy(p + 36, &r->front, 2);
	memcpy(p + 38, &r->dead, 2);
	sum = check_of(p, id, i);
	memcpy(p + RECORD_BODY, &sum, 4);
}

static bool get_record(const uint8_t *p, struct idx_record *r, const struct segment_id *id, size_t i)
{
	uint32_t sum;

	memcpy(r->key.b, p, 16);
	memcpy(&r->at_ns, p + 16, 8);
	memcpy(&r->offset, p + 24, 4);
	memcpy(&r->data, p + 28, 4);
	memcpy(&r->expires, p + 32, 4);
	memcpy(&r->front, p + 36, 2);
	memcpy(&r->dead, p + 38, 2);
	memcpy(&sum, p + RECORD_BODY, 4);
	return sum == check_of(p, id, i);
}

static int write_all(int fd, const uint8_t *p, size_t n)
{
	while (n) {
		ssize_t put = write(fd, p, n);

		if (put < 0 && errno != EINTR)
			return -1;
		if (put > 0) {
			p += put;
			n -= (size_t)put;
		}
	}
	return 0;
}

int idx_write(struct dir *d, const struct segment_id *id, const struct idx *x, struct ds_err *err)
{
	char name[SEGMENT_NAME], tmp[SEGMENT_NAME];
	size_t bytes = IDX_HEAD + x->n * IDX_RECORD;
	uint8_t *p = mem_array(bytes, 1);
	int fd, bad;

	if (!p)
		return err_nomem(err, bytes, "an index of a segment");
	segment_name(id, ".idx", name);
	segment_name(id, ".new", tmp);
	put_head(p, id, x->size, x->n);
	for (size_t i = 0; i < x->n; i++)
		put_record(p + IDX_HEAD + i * IDX_RECORD, &x->rec[i], id, i);
	fd = dir_open_file(d, tmp, O_WRONLY | O_CREAT | O_TRUNC);
	bad = fd < 0 || write_all(fd, p, bytes);
	free(p);
	if (fd >= 0 && close(fd))
		bad = 1;
	if (!bad)
		bad = renameat(d->fd, tmp, d->fd, name);
	if (!bad)
		return 0;
	err_errno(err, DS_IO, "cannot write '%s'", name);
	unlinkat(d->fd, tmp, 0);
	return err->code;
}

/* Opens it and reads its head: right for that segment.  -1. */
static int open_idx(struct dir *d, const struct segment_id *id, int flags, uint64_t *size, uint64_t *n)
{
	uint8_t h[IDX_HEAD], want[IDX_HEAD];
	char name[SEGMENT_NAME];
	struct stat st;
	int fd;

	segment_name(id, ".idx", name);
	fd = dir_open_file(d, name, flags);
	if (fd < 0)
		return -1;
	errno = 0;
	if (fstat(fd, &st) == 0 && st.st_size >= IDX_HEAD && dir_read(fd, h, sizeof h, 0)) {
		memcpy(size, h + 32, 8);
		memcpy(n, h + 40, 8);
		put_head(want, id, *size, *n);
		if (memcmp(h, want, sizeof h) == 0 &&
			*n == ((uint64_t)st.st_size - IDX_HEAD) / IDX_RECORD &&
			((uint64_t)st.st_size - IDX_HEAD) % IDX_RECORD == 0)
			return fd;
	}
	close(fd);
	return -1;
}

static bool segment_has_size(struct dir *d, const struct segment_id *id, uint64_t size)
{
	char name[SEGMENT_NAME];
	struct stat st;

	segment_name(id, ".seg", name);
	return fstatat(d->fd, name, &st, 0) == 0 && (uint64_t)st.st_size == size;
}

int idx_read(struct dir *d, const struct segment_id *id, struct idx *x, struct ds_err *err)
{
	uint64_t n = 0, last = 0;
	uint8_t *p = NULL;
	int fd;

	*x = (struct idx){ 0 };
	fd = open_idx(d, id, O_RDONLY, &x->size, &n);
	if (fd < 0 && dir_lacks())
		return err_errno(err, DS_TEMP, "cannot open the index of a segment");
	if (fd < 0 || !segment_has_size(d, id, x->size))
		goto no;
	p = mem_array(PIECE, IDX_RECORD);
	x->rec = mem_array((size_t)n, sizeof *x->rec);
	if (!p || !x->rec)
		goto no;
	for (size_t i = 0; i < n; i++) {
		size_t left = (size_t)n - i < PIECE ? (size_t)n - i : PIECE;
		struct idx_record *r = &x->rec[i];
		uint64_t end;

		if (i % PIECE == 0 && !dir_read(fd, p, left * IDX_RECORD, IDX_HEAD + i * IDX_RECORD))
			goto no;
		if (!get_record(p + i % PIECE * IDX_RECORD, r, id, i))
			goto no;
		end = ((uint64_t)r->offset + r->front + r->data) * INDEX_UNIT;
		if ((uint64_t)r->offset * INDEX_UNIT < last || end > x->size || r->data >> INDEX_DATA_BITS)
			goto no;
		last = end;
	}
	x->n = x->cap = (size_t)n;
	free(p);
	close(fd);
	return 0;
no:
	free(p);
	if (fd >= 0)
		close(fd);
	idx_free(x);
	return err_set(err, DS_NO, "a segment has no right index");
}

size_t idx_count(struct dir *d, const struct segment_id *id)
{
	char name[SEGMENT_NAME];
	struct stat st;

	segment_name(id, ".idx", name);
	return fstatat(d->fd, name, &st, 0) || st.st_size < IDX_HEAD ? 0 : (size_t)(st.st_size - IDX_HEAD) / IDX_RECORD;
}

/* Where a record is, of those in [low, high), which lie in [from, to), if items are of about the same size. */
static uint64_t likely(uint64_t low, uint64_t high, uint64_t from, uint64_t to, uint64_t offset)
{
	double part = offset <= from ? 0 : offset >= to ? 1 : (double)(offset - from) / (double)(to - from);
	uint64_t mid = low + (uint64_t)((double)(high - low) * part);

	return mid < high ? mid : high - 1;
}

/* Of an open one with n records, for so many bytes of its segment: where the record of an item lies, and it. */
static bool find_record(int fd, const struct segment_id *id, uint64_t size, uint64_t n, uint32_t offset, uint64_t *at,
	struct idx_record *r)
{
	uint64_t low = 0, high = n, from = 0, to = size / INDEX_UNIT;
	uint8_t p[IDX_RECORD];

	for (int probe = 0; low < high; probe++) {
		*at = probe < GUESSES ? likely(low, high, from, to, offset) : low + (high - low) / 2;
		if (!dir_read(fd, p, sizeof p, IDX_HEAD + *at * IDX_RECORD) || !get_record(p, r, id, (size_t)*at))
			return false;
		if (r->offset == offset)
			return true;
		if (r->offset < offset) {
			low = *at + 1;
			from = (uint64_t)r->offset + r->front + r->data;
		} else {
			high = *at;
			to = r->offset;
		}
	}
	return false;
}

bool idx_find(struct dir *d, const struct segment_id *id, uint32_t offset, struct idx_record *r)
{
	uint64_t size, n, at;
	int fd = open_idx(d, id, O_RDONLY, &size, &n);
	bool found = fd >= 0 && find_record(fd, id, size, n, offset, &at, r);

	if (fd >= 0)
		close(fd);
	return found;
}

bool idx_drop(struct dir *d, const struct segment_id *id, uint32_t offset)
{
	uint64_t size, n, at;
	struct idx_record r;
	uint8_t p[IDX_RECORD];
	bool done;
	int fd = open_idx(d, id, O_RDWR, &size, &n);

	if (fd < 0)
		return false;
	done = find_record(fd, id, size, n, offset, &at, &r);
	if (done) {
		r.dead = 1;
		put_record(p, &r, id, (size_t)at);
		done = dir_write(fd, p, sizeof p, IDX_HEAD + at * IDX_RECORD);
	}
	close(fd);
	if (!done) { /* one that is wrong is made anew from the segment */
		char name[SEGMENT_NAME];

		segment_name(id, ".idx", name);
		unlinkat(d->fd, name, 0);
	}
	return done;
}

int idx_sync(struct dir *d, const struct segment_id *id, struct ds_err *err)
{
	char name[SEGMENT_NAME];
	int fd, rc;

	segment_name(id, ".idx", name);
	fd = dir_open_file(d, name, O_RDONLY);
	if (fd < 0)
		return errno == ENOENT ? 0 : err_errno(err, DS_IO, "cannot open '%s/%s'", d->path, name);
	do
		rc = fdatasync(fd);
	while (rc && errno == EINTR);
	if (rc)
		err_errno(err, DS_IO, "cannot write '%s/%s' to disk", d->path, name);
	close(fd);
	return rc ? err->code : 0;
}
