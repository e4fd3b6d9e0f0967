/* Looking through the files of a store, whether or not it is in use: nothing is changed. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/time.h"
#include "store/dir_impl.h"

/* A directory, for its names and marks only. */
static int walk_open(struct dir *d, const char *path, struct ids *ids, struct ds_err *err)
{
	int rc;

	*d = (struct dir){ .base.o.read_only = true, .path = (char *)(uintptr_t)path, .fd = -1, .lock_fd = -1 };
	*ids = (struct ids){ 0 };
	rc = format_open(d, err);
	return rc ? rc : dir_names(d, ids, err);
}

static void walk_close(struct dir *d, struct ids *ids)
{
	if (d->fd >= 0)
		close(d->fd);
	free(ids->id);
}

/* 0 and -1 in *fd: it went away meanwhile. */
static int open_segment(const struct dir *d, const struct segment_id *id, char name[SEGMENT_NAME], int *fd,
	struct ds_err *err)
{
	segment_name(id, ".seg", name);
	*fd = file_at(d->fd, name, O_RDONLY, 0);
	return *fd < 0 && errno != ENOENT ? err_errno(err, DS_IO, "cannot open '%s/%s'", d->path, name) : 0;
}

/* ---- list ---- */

typedef int (*list_fn)(void *ctx, const struct store_item *item, const char *segment, uint64_t offset,
	struct ds_err *err);

static int list_segment(const struct dir *d, const struct segment_id *id, list_fn each, void *ctx, struct ds_err *err)
{
	enum scan_got got = SCAN_GAP;
	char name[SEGMENT_NAME];
	struct scan s;
	int fd, rc = open_segment(d, id, name, &fd, err);

	if (rc || fd < 0)
		return rc;
	rc = scan_begin(&s, fd, id, d->marked ? &d->secret : NULL, err);
	while (!rc && got != SCAN_STOP && got != SCAN_END) {
		rc = scan_next(&s, &got, err);
		if (!rc && got == SCAN_ITEM && !store_item_expired(&s.item, (uint64_t)time_wall_ns()))
			rc = each(ctx, &s.item, name, s.offset, err);
	}
	scan_end(&s);
	close(fd);
	return rc;
}

int dir_list(const char *path, list_fn each, void *ctx, struct ds_err *err)
{
	struct ids ids;
	struct dir d;
	int rc = walk_open(&d, path, &ids, err);

	for (size_t i = 0; !rc && i < ids.n; i++)
		rc = list_segment(&d, &ids.id[i], each, ctx, err);
	walk_close(&d, &ids);
	return rc;
}

/* ---- verify ---- */

struct verify {
	struct dir d;
	struct tools t;
	struct index *seen;
	struct dir_report *r;
	void (*tell)(void *ctx, const char *line);
	void *ctx;
	const char *name;     /* of the present segment */
	struct idx idx;       /* what is in it */
	uint8_t *plain;
	size_t cap;
};

static __attribute__((format(printf, 2, 3))) void tell(struct verify *v, const char *fmt, ...)
{
	char line[300];
	va_list ap;
	size_t n = (size_t)snprintf(line, sizeof line, "%s: ", v->name);

	va_start(ap, fmt);
	vsnprintf(line + n, sizeof line - n, fmt, ap);
	va_end(ap);
	if (v->tell)
		v->tell(v->ctx, line);
}

/* A key that was seen before: which of the two is the one does not matter for the sum of their bytes, nearly. */
static bool seen_before(struct verify *v, const struct store_key *key)
{
	uint64_t hash = index_hash(v->seen, key);

	if (index_find(v->seen, key, hash) != INDEX_NONE)
		return true;
	index_add(v->seen, key, hash);
	return false;
}

static int verify_item(struct verify *v, struct scan *s, struct ds_err *err)
{
	uint8_t *dst = tools_room(&v->plain, &v->cap, (size_t)s->item.size);
	char hex[STORE_KEY_HEX];
	struct idx_record rec;
	int rc;

	if (!dst)
		return err_nomem(err, (size_t)s->item.size, "an item");
	rc = item_read(&v->t, s->fd, s->offset + s->front, &s->item, dst, err);
	if (rc == DS_DATA || rc == DS_NOINPUT) {
		store_key_hex(&s->item.key, hex);
		tell(v, "byte %" PRIu64 ": item %s: %s", s->offset, hex, err->text);
		v->r->bad_items++;
		return 0;
	}
	if (rc)
		return rc;
	if (store_item_expired(&s->item, (uint64_t)time_wall_ns()) || seen_before(v, &s->item.key))
		v->r->dead_bytes += s->at - s->offset;
	else
		v->r->items++;
	scan_record(s, &rec);
	return idx_add(&v->idx, &rec) ? 0 : err_nomem(err, sizeof rec, "an index of a segment");
}

/* What the file beside a segment says must be there; what it does not say is only found later. */
static int verify_idx(struct verify *v, const struct segment_id *id, bool ended, struct ds_err *err)
{
	char name[SEGMENT_NAME];
	struct idx x;
	size_t k = 0;
	bool right;
	int rc;

	segment_name(id, ".idx", name);
	if (!ended || faccessat(v->d.fd, name, F_OK, 0))
		return 0;
	rc = idx_read(&v->d, id, &x, err);
	if (rc && rc != DS_NO)
		return rc;
	right = !rc;
	for (size_t i = 0; right && i < v->idx.n; i++) {
		while (k < x.n && x.rec[k].offset < v->idx.rec[i].offset)
			k++;
		right = k < x.n && x.rec[k].offset == v->idx.rec[i].offset &&
			store_key_equal(&x.rec[k].key, &v->idx.rec[i].key);
	}
	if (!right) {
		tell(v, "the index beside it is wrong");
		v->r->bad_indices++;
	}
	idx_free(&x);
	return 0;
}

static void verify_rest(struct verify *v, const struct scan *s, bool ended)
{
	if (s->limit == s->at)
		return;
	if (!ended && !file_lock(s->fd, LOCK_SHARED, false))
		return; /* what somebody writes just now is not torn */
	file_lock(s->fd, LOCK_NONE, false);
	tell(v, "byte %" PRIu64 ": %" PRIu64 " bytes after the last whole item", s->at, s->limit - s->at);
	v->r->torn_bytes += s->limit - s->at;
}

static int verify_frames(struct verify *v, struct scan *s, bool *ended, struct ds_err *err)
{
	enum scan_got got = SCAN_GAP;
	int rc = 0;

	*ended = false;
	while (!rc && got != SCAN_STOP && got != SCAN_END) {
		rc = scan_next(s, &got, err);
		if (rc)
			break;
		if (got == SCAN_ITEM)
			rc = verify_item(v, s, err);
		if (got == SCAN_DROPPED)
			v->r->dead_bytes += s->at - s->offset;
		if (got == SCAN_GAP) {
			tell(v, "byte %" PRIu64 ": %" PRIu64 " item%s damaged", s->offset, s->lost, plural(s->lost));
			v->r->bad_items += s->lost;
		}
		*ended = got == SCAN_END;
	}
	return rc;
}

static int verify_segment(struct verify *v, const struct segment_id *id, struct ds_err *err)
{
	char name[SEGMENT_NAME];
	bool ended;
	struct scan s;
	int fd, rc = open_segment(&v->d, id, name, &fd, err);

	if (rc || fd < 0)
		return rc;
	v->name = name;
	rc = scan_begin(&s, fd, id, v->d.marked ? &v->d.secret : NULL, err);
	if (!rc)
		rc = verify_frames(v, &s, &ended, err);
	if (!rc) {
		v->r->segments++;
		v->r->bytes += s.limit + IDX_HEAD + v->idx.n * IDX_RECORD; /* as stat counts it */
		verify_rest(v, &s, ended);
		rc = verify_idx(v, id, ended, err);
	}
	scan_end(&s);
	idx_free(&v->idx);
	close(fd);
	return rc;
}

int dir_verify(const char *path, void (*say)(void *ctx, const char *line), void *ctx, struct dir_report *r,
	struct ds_err *err)
{
	struct verify *v = mem_aligned(sizeof *v);
	struct ids ids = { 0 };
	int rc;

	*r = (struct dir_report){ 0 };
	if (!v)
		return err_nomem(err, sizeof *v, "a check");
	v->r = r;
	v->tell = say;
	v->ctx = ctx;
	rc = walk_open(&v->d, path, &ids, err);
	if (!rc)
		rc = tools_new(&v->t, err);
	if (!rc)
		rc = index_new(&v->seen, err);
	v->name = path;
	if (!rc && ids.odd)
		tell(v, "%zu that are named like segments and are no files are passed over", ids.odd);
	for (size_t i = 0; !rc && i < ids.n; i++)
		rc = verify_segment(v, &ids.id[i], err);
	walk_close(&v->d, &ids);
	tools_free(&v->t);
	index_free(v->seen);
	free(v->plain);
	free(v);
	if (!rc && r->bad_items)
		rc = err_set(err, DS_NO, "'%s': %" PRIu64 " item%s wrong", path, r->bad_items,
			r->bad_items == 1 ? " is" : "s are");
	return rc;
}

int dir_there(const char *path, struct ds_err *err)
{
	struct ids ids;
	struct dir d;
	int rc = walk_open(&d, path, &ids, err);

	walk_close(&d, &ids);
	return rc;
}
