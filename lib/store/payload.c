/* The payloads of items: as they were put, with the bytes of elements taken apart, compressed. */
#include <zstd.h>

#include "base/mem.h"
#include "store/item.h"

enum { PAIRS = 64 }; /* at a time: loops of a fixed length become vectors */

/* Elements of two bytes, as many as PAIRS make whole; how many. */
static size_t split2(const uint8_t *p, size_t n, uint8_t *a, uint8_t *b)
{
	size_t i = 0;

	for (; n - i >= PAIRS; i += PAIRS) {
		uint8_t v[2 * PAIRS], low[PAIRS], high[PAIRS];

		memcpy(v, p + 2 * i, sizeof v);
		for (int k = 0; k < PAIRS; k++) {
			low[k] = v[2 * k];
			high[k] = v[2 * k + 1];
		}
		memcpy(a + i, low, sizeof low);
		memcpy(b + i, high, sizeof high);
	}
	return i;
}

void store_payload_split(unsigned element, const struct iovec *iov, int iovs, size_t size, uint8_t *data)
{
	const size_t count = size / element, whole = count * element;
	size_t at = 0, i = 0;
	unsigned k = 0;

	for (int v = 0; v < iovs; v++) {
		const uint8_t *p = iov[v].iov_base;
		size_t j = 0;

		if (element == 2 && !k && at < whole) {
			size_t n = iov[v].iov_len / 2 < count - i ? iov[v].iov_len / 2 : count - i;

			n = split2(p, n, data + i, data + count + i);
			i += n;
			at += 2 * n;
			j = 2 * n;
		}
		for (; j < iov[v].iov_len; j++, at++) {
			if (at >= whole) {
				data[at] = p[j];
				continue;
			}
			data[k * count + i] = p[j];
			if (++k == element) {
				k = 0;
				i++;
			}
		}
	}
	memset(data + size, 0, round_up(size, FRAME_ALIGN) - size);
}

static void join2(const uint8_t *a, const uint8_t *b, size_t count, uint8_t *p)
{
	size_t i = 0;

	for (; count - i >= PAIRS; i += PAIRS) {
		uint8_t v[2 * PAIRS], low[PAIRS], high[PAIRS];

		memcpy(low, a + i, sizeof low);
		memcpy(high, b + i, sizeof high);
		for (int k = 0; k < PAIRS; k++) {
			v[2 * k] = low[k];
			v[2 * k + 1] = high[k];
		}
		memcpy(p + 2 * i, v, sizeof v);
	}
	for (; i < count; i++) {
		p[2 * i] = a[i];
		p[2 * i + 1] = b[i];
	}
}

void store_item_plain(const struct store_item *item, const uint8_t *data, void *dst)
{
	const size_t size = (size_t)item->size, count = item->planes ? size / item->planes : 0;
	uint8_t *p = dst;

	if (item->planes == 2)
		join2(data, data + count, count, p);
	else
		for (size_t i = 0; i < count; i++)
			for (unsigned k = 0; k < item->planes; k++)
				p[i * item->planes + k] = data[k * count + i];
	if (size > count * item->planes)
		memcpy(p + count * item->planes, data + count * item->planes, size - count * item->planes);
}

bool store_item_decode(const struct store_item *item, const uint8_t *stored, uint8_t *data)
{
	const size_t want = round_up((size_t)item->size, FRAME_ALIGN);
	size_t n = ZSTD_findFrameCompressedSize(stored, item->stored);

	if (!item->zstd || ZSTD_isError(n) || item->stored - n >= FRAME_ALIGN)
		return false;
	return ZSTD_decompress(data, want, stored, n) == want;
}
