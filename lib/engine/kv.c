#include "engine/kv.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"

int kv_pool_new(struct kv_pool **out, enum dtype type, size_t layers, size_t dim, uint64_t bytes, struct ds_err *err)
{
	size_t block = layers * KV_BLOCK * dim * dtype_size(type);
	struct kv_pool *p;

	if (bytes / block == 0)
		return err_set(err, DS_CONFIG,
			"--kv-memory of %llu bytes is less than one block of %d tokens, %zu bytes",
			(unsigned long long)bytes, KV_BLOCK, block);
	p = mem_calloc(1, sizeof(*p));
	if (!p)
		return err_nomem(err, sizeof(*p), "KV pool");
	p->type = type;
	p->layers = layers;
	p->dim = dim;
	p->block_bytes = block;
	p->blocks = bytes / block < UINT32_MAX ? (size_t)(bytes / block) : UINT32_MAX;
	p->free = mem_array(p->blocks, sizeof(*p->free));
	p->owners = mem_calloc(p->blocks, sizeof(*p->owners));
	p->kept = mem_calloc(p->blocks, sizeof(*p->kept));
	p->memory = mmap(NULL, p->blocks * block, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		-1, 0);
	if (p->memory == MAP_FAILED)
		p->memory = NULL;
	else
		mem_huge(p->memory, p->blocks * block);
	if (!p->free || !p->owners || !p->kept || !p->memory) {
		err_set(err, DS_OS, "out of memory: %zu bytes for the KV cache; lower --kv-memory", p->blocks * block);
		kv_pool_free(p);
		return err->code;
	}
	/* Low numbers are handed out first, so that memory once touched is used again. */
	for (size_t i = 0; i < p->blocks; i++)
		p->free[i] = (uint32_t)(p->blocks - 1 - i);
	*out = p;
	return 0;
}

void kv_pool_free(struct kv_pool *p)
{
	if (!p)
		return;
	if (p->memory)
		munmap(p->memory, p->blocks * p->block_bytes);
	free(p->free);
	free(p->owners);
	free(p->kept);
	free(p);
}

size_t kv_pool_available(const struct kv_pool *p)
{
	return p->blocks - p->used + p->idle;
}

size_t kv_block_number(const struct kv_pool *p, const void *block)
{
	return (size_t)((const unsigned char *)block - p->memory) / p->block_bytes;
}

/* The number of owners changes by one; whether a kept block is idle follows from it. */
static void own(struct kv_pool *p, size_t n, bool more)
{
	bool was = p->kept[n] && p->owners[n] == 1, is;

	p->owners[n] += more ? 1 : -1;
	is = p->kept[n] && p->owners[n] == 1;
	p->idle += is;
	p->idle -= was;
	if (is != was)
		p->rest(p->cache, n, is);
	if (!p->owners[n])
		p->free[p->blocks - p->used--] = (uint32_t)n;
}

void kv_block_keep(struct kv_pool *p, void *block)
{
	size_t n = kv_block_number(p, block);

	p->owners[n]++;
	p->kept[n] = true;
}

void kv_block_drop(struct kv_pool *p, void *block)
{
	size_t n = kv_block_number(p, block);

	p->idle -= p->owners[n] == 1;
	p->kept[n] = false;
	own(p, n, false);
}

/* Room for `need` entries in the table of blocks. */
static bool grow(struct kv_seq *s, size_t need)
{
	size_t cap = need > 2 * s->cap ? need : 2 * s->cap;
	void **pages;

	if (need <= s->cap)
		return true;
	pages = mem_realloc(s->pages, cap, sizeof(*pages));
	if (!pages)
		return false;
	s->pages = pages;
	s->cap = cap;
	return true;
}

bool kv_seq_reserve(struct kv_seq *s, struct kv_pool *p, size_t tokens)
{
	size_t need = kv_blocks_for(tokens);

	if (!grow(s, need))
		return false;
	while (s->count < need) {
		uint32_t n;

		if (p->used == p->blocks && p->idle)
			p->reclaim(p->cache);
		if (p->used == p->blocks)
			return false;
		n = p->free[p->blocks - ++p->used];
		p->owners[n] = 1;
		s->pages[s->count++] = p->memory + n * p->block_bytes;
	}
	return true;
}

void kv_seq_shrink(struct kv_seq *s, struct kv_pool *p, size_t blocks)
{
	while (s->count > blocks)
		own(p, kv_block_number(p, s->pages[--s->count]), false);
}

bool kv_seq_share(struct kv_seq *s, struct kv_pool *p, void *block)
{
	if (!grow(s, s->count + 1))
		return false;
	own(p, kv_block_number(p, block), true);
	s->pages[s->count++] = block;
	return true;
}

void kv_seq_replace(struct kv_seq *s, struct kv_pool *p, size_t n, void *block)
{
	if (s->pages[n] == block)
		return;
	own(p, kv_block_number(p, block), true);
	own(p, kv_block_number(p, s->pages[n]), false);
	s->pages[n] = block;
}

bool kv_seq_fork(struct kv_seq *s, const struct kv_seq *from, size_t length, struct kv_pool *p)
{
	size_t shared = length ? (length - 1) / KV_BLOCK : 0;

	for (size_t i = 0; i < shared; i++)
		if (!kv_seq_share(s, p, from->pages[i]))
			goto fail;
	if (length) {
		if (!kv_seq_reserve(s, p, length))
			goto fail;
		memcpy(s->pages[shared], from->pages[shared], p->block_bytes);
	}
	s->length = length;
	s->mtp = from->mtp < length ? from->mtp : length;
	return true;
fail:
	kv_seq_clear(s, p);
	return false;
}

void kv_seq_clear(struct kv_seq *s, struct kv_pool *p)
{
	kv_seq_shrink(s, p, 0);
	free(s->pages);
	*s = (struct kv_seq){ 0 };
}

static bool row_finite(const struct kv_pool *p, const unsigned char *row)
{
	for (size_t i = 0; i < p->dim; i++) {
		uint16_t half;
		uint32_t word;

		if (p->type == DT_BF16) {
			memcpy(&half, row + i * sizeof(half), sizeof(half));
			word = (uint32_t)half << 16;
		} else {
			memcpy(&word, row + i * sizeof(word), sizeof(word));
		}
		if ((word & 0x7f800000) == 0x7f800000)
			return false;
	}
	return true;
}

bool kv_seq_finite(const struct kv_seq *s, const struct kv_pool *p, size_t tokens, size_t *layer, size_t *token)
{
	size_t row = p->dim * dtype_size(p->type);

	for (*token = 0; *token < tokens && *token / KV_BLOCK < s->count; ++*token)
		for (*layer = 0; *layer < p->layers; ++*layer)
			if (!row_finite(p, (const unsigned char *)s->pages[*token / KV_BLOCK] +
				    (*layer * KV_BLOCK + *token % KV_BLOCK) * row))
				return false;
	return true;
}

unsigned char *kv_seq_copy(const struct kv_seq *s, const struct kv_pool *p, size_t first, size_t n)
{
	unsigned char *bytes = mem_array(n, p->block_bytes);

	for (size_t i = 0; bytes && i < n; i++)
		memcpy(bytes + i * p->block_bytes, s->pages[first + i], p->block_bytes);
	return bytes;
}

void kv_parked_free(struct kv_parked *k)
{
	if (!k->borrowed)
		free(k->bytes);
	*k = (struct kv_parked){ 0 };
}

bool kv_seq_park(struct kv_seq *s, struct kv_pool *p, size_t skip, struct kv_parked *out)
{
	size_t blocks = kv_blocks_for(s->length);
	unsigned char *bytes = kv_seq_copy(s, p, skip, blocks - skip);

	if (!bytes)
		return false;
	*out = (struct kv_parked){ .bytes = bytes, .skip = skip, .blocks = blocks, .length = s->length,
		.mtp = s->mtp };
	kv_seq_shrink(s, p, 0);
	s->length = s->mtp = 0;
	return true;
}

bool kv_seq_unpark(struct kv_seq *s, struct kv_pool *p, struct kv_parked *in, const struct kv_seq *from,
	const unsigned char *copy)
{
	if (kv_pool_available(p) < kv_parked_blocks(in, from != NULL) || !grow(s, in->blocks))
		return false;
	for (size_t i = 0; from && i < in->skip; i++)
		kv_seq_share(s, p, from->pages[i]);
	kv_seq_reserve(s, p, in->blocks * KV_BLOCK);
	for (size_t i = from ? in->skip : 0; i < in->blocks; i++)
		memcpy(s->pages[i], (i < in->skip ? copy + i * p->block_bytes
			: in->bytes + (i - in->skip) * p->block_bytes), p->block_bytes);
	s->length = in->length;
	s->mtp = in->mtp;
	kv_parked_free(in);
	return true;
}
