/*
 * Memory with checked sizes.  NULL on overflow or exhaustion: the caller turns it into err_nomem.
 */
#ifndef DS_BASE_MEM_H
#define DS_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

void *mem_calloc(size_t n, size_t size);
void *mem_array(size_t n, size_t size);              /* not zeroed */
void *mem_copy(const void *p, size_t n);             /* the n bytes at p */
void *mem_realloc(void *p, size_t n, size_t size);   /* p stays valid on NULL */
void *mem_aligned(size_t bytes);                     /* 64-byte aligned, zeroed; free() */
/* p with room for an n-th element (counted from 0), doubled where *cap says it has none; NULL: no memory, p stays. */
void *mem_more(void *p, size_t *cap, size_t n, size_t size);
/* Asks that a mapping be made of huge pages, in which the processor finds its way faster; the system may refuse. */
void mem_huge(void *p, size_t bytes);
/* The same, also for what was touched already, which is copied together at once. */
void mem_huge_now(void *p, size_t bytes);
bool mem_mul(size_t a, size_t b, size_t *out);       /* false on overflow */
static inline size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* A growing byte string, always NUL-terminated once something was added; nomem is sticky. */
struct buf {
	char *p;
	size_t len, cap;
	bool nomem;
};
void buf_add(struct buf *b, const void *p, size_t n);
void buf_str(struct buf *b, const char *s);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_free(struct buf *b);

#endif
