"""Drawing one of the allowed ids; see the .pxd."""

from libc.math cimport INFINITY, exp
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc, qsort

from cpython.bool cimport PyBool_Check
from cpython.buffer cimport Py_buffer, PyBuffer_Release
from cpython.float cimport PyFloat_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid

from ._ingest cimport plain_int
from ._logits cimport row_argmax, row_gather
from ._rows cimport row_open, row_t
from ._types cimport index_t, token_t

from .errors import InvalidArgument, InvalidType, NoCandidateError, OutOfMemory

__all__ = ["sample_row"]


cdef struct place_t:
    float logit
    index_t place            # in the list of allowed ids


cdef double number(object value, str what) except? -1:
    if PyFloat_CheckExact(value):
        return value
    try:
        if not PyBool_Check(value) and not isinstance(value, (str, bytes, bytearray)):
            return float(value)
    except TypeError:
        pass
    raise InvalidType(f"{what} must be a number, got {type(value).__name__}")


cdef int options_read(
    options_t* out, object temperature, object top_k, object top_p, object min_p
) except -1:
    out.temperature = number(temperature, "temperature")
    if not 0 <= out.temperature < INFINITY:
        raise InvalidArgument(
            f"temperature must be finite and not negative, got {temperature}"
        )
    count = plain_int(top_k, "top_k")
    if count < 0:
        raise InvalidArgument(f"top_k must not be negative, got {top_k}")
    out.top_k = min(count, 2**62)
    out.top_p = number(top_p, "top_p")
    if not 0 < out.top_p <= 1:
        raise InvalidArgument(f"top_p must lie in (0, 1], got {top_p}")
    out.min_p = number(min_p, "min_p")
    if not 0 <= out.min_p <= 1:
        raise InvalidArgument(f"min_p must lie in [0, 1], got {min_p}")
    return 0


cdef object bit_generator_of(object rng):
    source = getattr(rng, "bit_generator", rng)
    if not PyCapsule_IsValid(getattr(source, "capsule", None), "BitGenerator"):
        raise InvalidType(
            "rng must be a numpy.random.Generator or BitGenerator, got "
            f"{type(rng).__name__}"
        )
    return source


cdef bitgen_t* bitgen_of(object source) except NULL:
    return <bitgen_t*>PyCapsule_GetPointer(source.capsule, "BitGenerator")


cdef size_t sample_room(index_t n) noexcept nogil:
    return n * (sizeof(double) + sizeof(place_t))


cdef int by_logit(const void* a, const void* b) noexcept nogil:
    """Highest logit first, then lowest id."""
    cdef const place_t* x = <const place_t*>a
    cdef const place_t* y = <const place_t*>b
    if x.logit != y.logit:
        return 1 if x.logit < y.logit else -1
    return (x.place > y.place) - (x.place < y.place)


cdef index_t weigh(
    place_t* places, index_t n, double temperature, double* weight
) noexcept nogil:
    """Write the weight of each id, 1 for the highest; returns how many are above 0.

    Ids without a weight are taken out of `places`.
    """
    cdef float top = -INFINITY
    cdef index_t i, kept = 0
    for i in range(n):
        top = max(top, places[i].logit)
    for i in range(n):
        if top == INFINITY:  # those at +inf share everything
            weight[i] = places[i].logit == INFINITY
        elif places[i].logit > -INFINITY:
            weight[i] = exp((<double>places[i].logit - top) / temperature)
        else:
            weight[i] = 0
        if weight[i] > 0:
            places[kept] = places[i]
            kept += 1
    return kept


cdef void put_top_first(place_t* places, index_t n, index_t k) noexcept nogil:
    """Bring the k highest of n to the front, sorted.

    Quickselect first: of 49,152 ids, the 40 highest take 0.2 ms, a sort of all 6 ms.
    """
    cdef int64_t low = 0, high = <int64_t>n - 1, i, j
    cdef int left_tries = 128        # against orders that make it quadratic
    cdef place_t pivot
    while low < high and 0 < k < n and left_tries > 0:
        left_tries -= 1
        pivot = places[low + (high - low) // 2]
        i = low
        j = high
        while i <= j:
            while by_logit(&places[i], &pivot) < 0:
                i += 1
            while by_logit(&places[j], &pivot) > 0:
                j -= 1
            if i <= j:
                places[i], places[j] = places[j], places[i]
                i += 1
                j -= 1
        if <int64_t>k - 1 <= j:
            high = j
        elif <int64_t>k - 1 >= i:
            low = i
        else:
            break
    qsort(places, k if left_tries else n, sizeof(place_t), by_logit)


cdef index_t nucleus(
    place_t* places, index_t n, index_t sorted, const double* weight, double top_p
) noexcept nogil:
    """Count the highest places that together reach top_p of the weight.

    The first `sorted` places are in order; more are put in order as they are needed.
    """
    cdef double total = 0, reached = 0
    cdef index_t i, more
    for i in range(n):
        total += weight[places[i].place]
    for i in range(n):
        if i == sorted:
            more = min(max(64, 3 * sorted), n - sorted)
            put_top_first(places + sorted, n - sorted, more)
            sorted += more
        reached += weight[places[i].place]
        if reached >= top_p * total:
            return i + 1
    return n


cdef index_t draw(
    const double* weight, index_t n, double total, bitgen_t* bits
) noexcept nogil:
    cdef double at = bits.next_double(bits.state) * total, reached = 0
    cdef index_t i, last = 0
    for i in range(n):
        if weight[i] > 0:
            reached += weight[i]
            if reached > at:
                return i
            last = i
    return last                  # rounding: the sum fell short of the total


cdef int64_t row_sample(
    const row_t* row, const token_t* ids, index_t n, const options_t* options,
    void* room, bitgen_t* bits,
) noexcept nogil:
    cdef double* weight = <double*>room
    cdef place_t* places = <place_t*>(weight + n)
    cdef float* logits = <float*>room  # until the weights are written
    cdef index_t i, left, only = 0, kept = 0, ordered = 0
    cdef double total = 0
    if options.temperature == 0:
        return row_argmax(row, ids, n)
    row_gather(row, ids, n, logits)
    for i in range(n):
        places[i].logit = logits[i] if logits[i] > -INFINITY else -INFINITY
        places[i].place = i
    left = weigh(places, n, options.temperature, weight)
    if left == 0:
        return -1
    if options.top_k and options.top_k < left:
        ordered = <index_t>options.top_k
        put_top_first(places, left, ordered)
        left = ordered
    if options.top_p < 1:
        left = nucleus(places, left, ordered, weight, options.top_p)
    # Whoever is out gets a weight below zero: the draw goes by id, whatever was sorted.
    for i in range(n):
        weight[i] = -weight[i]
    for i in range(left):
        if -weight[places[i].place] >= options.min_p:
            weight[places[i].place] = -weight[places[i].place]
            only = places[i].place
            kept += 1
    if kept == 1:
        return only
    for i in range(n):
        total += max(weight[i], 0.0)
    return draw(weight, n, total, bits)


cdef int64_t ids_sample(
    object logits, object dtype, token_t n_vocab, const token_t* ids, index_t n,
    const options_t* options, bitgen_t* bits,
) except -2:
    cdef Py_buffer view
    cdef row_t row
    cdef int64_t drawn = -1
    cdef void* room
    row_open(logits, 1, n_vocab, False, dtype, &view, &row)
    room = malloc(sample_room(n))
    if room != NULL:
        drawn = row_sample(&row, ids, n, options, room, bits)
    PyBuffer_Release(&view)
    free(room)
    if room == NULL:
        raise OutOfMemory(f"no memory to draw from {n} ids")
    return -1 if drawn < 0 else ids[drawn]


def sample_row(
    logits, rng, n_vocab, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, dtype=None
):
    """Draw one id of a whole row: free text, where nothing is forbidden.

    The steps of `Cursor.sample` with every id of the vocabulary allowed.

    Parameters
    ----------
    logits : array, shape [at least n_vocab]
        float32, float16 or bfloat16.
    rng : numpy.random.Generator or BitGenerator
        One double is taken where two or more ids are left, none otherwise.
    n_vocab : int
        What lies beyond is padding.
    temperature, top_k, top_p, min_p, dtype
        As in `Cursor.sample`; temperature 0 gives the highest, ties to the lowest id.

    Returns
    -------
    int

    Raises
    ------
    NoCandidateError
        Every logit is NaN or -inf.
    InvalidArgument, InvalidType
        As `Cursor.sample`.
    """
    cdef options_t options
    cdef object source = bit_generator_of(rng)
    cdef bitgen_t* bits
    cdef index_t i, n = plain_int(n_vocab, "n_vocab")
    cdef int64_t drawn
    cdef token_t* ids
    options_read(&options, temperature, top_k, top_p, min_p)
    if not 0 < n < 2**31:
        raise InvalidArgument(f"n_vocab is {n_vocab}; it lies in [1, 2**31)")
    ids = <token_t*>PyMem_Malloc(n * sizeof(token_t))
    if ids == NULL:
        raise OutOfMemory(f"no memory to draw from {n} ids")
    for i in range(n):
        ids[i] = <token_t>i
    try:
        with source.lock:
            bits = bitgen_of(source)
            drawn = ids_sample(logits, dtype, <token_t>n, ids, n, &options, bits)
    finally:
        PyMem_Free(ids)
    if drawn < 0:
        raise NoCandidateError("every logit of the row is NaN or -inf")
    return drawn
